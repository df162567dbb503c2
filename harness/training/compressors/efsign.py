"""EF-signSGD: an all-gather of signs and a scale for each block, with error feedback."""

from harness.training.compressors import onebit
from harness.training.transports import gathered

ERROR_BOUND = 1.5
KNOBS = dict(block=1024, feedback=True)
CLAIM = "contracts"
METHOD = dict(optimizer="sgd")

# The method is from Karimireddy et al., 2019.
promise, build = gathered(onebit.Codec, "(N-1) (n/8 + 4 n/block)")
