"""No compression, but through the same hook: the result must equal DDP's result bit for bit."""

import torch

from harness.training.transports import cast

ERROR_BOUND = 0.0

promise, build = cast(torch.float32)
