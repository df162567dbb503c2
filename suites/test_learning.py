"""Strategies that change the mathematics: when a loss is reached, not how fast steps are."""

import pytest
from recipes import learns

from harness import scaling

pytestmark = pytest.mark.nightly


@scaling(learns("local_sgd"))
def test_local_sgd(verdict):
    """Parameters averaged every so many steps."""


@scaling(learns("local_sgd", until=32))
def test_post_local_sgd(verdict):
    """The same, after a while of averaging in each step."""


@scaling(learns("local_sgd", growth=1.1))
def test_adaptive_periods(verdict):
    """The same, with longer and longer periods."""


@scaling(learns("parameter_server"), learns("parameter_server", staleness=2))
def test_parameter_server(verdict):
    """Bulk synchronous, and two steps behind at most."""


@scaling(learns("diloco"))
def test_diloco(verdict):
    """Outer steps with momentum, in full precision."""


@scaling(learns("diloco", quantised=True))
def test_diloco_in_bytes(verdict):
    """The same, with a byte for each parameter."""


@scaling(learns("easgd"), learns("fedavg"))
def test_centres(verdict):
    """Elastic and federated averaging."""
