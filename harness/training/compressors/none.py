"""No compression through the hook: must equal DDP to the bit."""

from __future__ import annotations

import torch

from harness.training.hooks import cast

ERROR_BOUND = 0.0

promise, build = cast(torch.float32)
