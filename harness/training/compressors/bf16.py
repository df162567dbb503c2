"""All-reduce in bf16: half the bytes, no error feedback."""

import torch

from harness.training.transports import cast

BESIDE = True  # other compressors are compared with this one, too
ERROR_BOUND = 1e-2

promise, build = cast(torch.bfloat16)
