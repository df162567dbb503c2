"""All-reduce in fp16: half the bytes, no error feedback."""

import torch

from harness.training.transports import cast

ERROR_BOUND = 2e-3

promise, build = cast(torch.float16)
