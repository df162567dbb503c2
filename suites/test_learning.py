"""Strategies that change the mathematics are judged by the time to a loss, not by step time."""

import pytest
from recipes import learns

from harness import scaling

pytestmark = pytest.mark.nightly


@scaling(learns("local_sgd"))
def test_local_sgd(verdict):
    """Local SGD averages the parameters at a fixed period of steps."""


@scaling(learns("local_sgd", until=32))
def test_post_local_sgd(verdict):
    """Post-local SGD averages in each of the first 32 steps, and then periodically."""


@scaling(learns("local_sgd", growth=1.1))
def test_adaptive_periods(verdict):
    """Local SGD lengthens its period as training goes on."""


@scaling(learns("parameter_server"), learns("parameter_server", staleness=2))
def test_parameter_server(verdict):
    """A parameter server is synchronous, or up to two steps stale."""


@scaling(learns("diloco"))
def test_diloco(verdict):
    """DiLoCo takes outer steps with momentum, in full precision."""


@scaling(learns("diloco", quantised=True))
def test_diloco_in_bytes(verdict):
    """DiLoCo sends one byte for each parameter."""


@scaling(learns("easgd"), learns("fedavg"))
def test_centres(verdict):
    """Elastic averaging (EASGD) and federated averaging are compared with DDP."""
