"""All-reduce in bf16: half the bytes, no error feedback."""

import torch

from harness.training.transports import cast

BESIDE = True  # what others are held beside, as dense training in fp32 is
ERROR_BOUND = 1e-2

promise, build = cast(torch.bfloat16)
