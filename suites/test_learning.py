"""Strategies that change the mathematics of training: time to a loss instead of time per step."""

import pytest
from recipes import learns

from harness import scaling

pytestmark = pytest.mark.nightly


@scaling(learns("local_sgd"))
def test_local_sgd(verdict):
    """Local SGD: parameters are averaged after a fixed number of steps."""


@scaling(learns("local_sgd", until=32))
def test_post_local_sgd(verdict):
    """Post-local SGD: parameters are averaged in each of the first 32 steps, then less often."""


@scaling(learns("local_sgd", growth=1.1))
def test_adaptive_periods(verdict):
    """Local SGD with periods between averages that grow."""


@scaling(learns("parameter_server"), learns("parameter_server", staleness=2))
def test_parameter_server(verdict):
    """A parameter server: synchronous, or with gradients that are at most two steps old."""


@scaling(learns("diloco"))
def test_diloco(verdict):
    """DiLoCo: outer steps with momentum, with exchanges in full precision."""


@scaling(learns("diloco", quantised=True))
def test_diloco_in_bytes(verdict):
    """DiLoCo with exchanges of one byte per parameter."""


@scaling(learns("easgd"), learns("fedavg"))
def test_centres(verdict):
    """Elastic averaging (EASGD) and federated averaging (FedAvg)."""
