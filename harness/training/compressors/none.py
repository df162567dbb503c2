"""No compression through the hook: must equal DDP to the bit."""

import torch

from harness.training.hooks import cast

ERROR_BOUND = 0.0

promise, build = cast(torch.float32)
