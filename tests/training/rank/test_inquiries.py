"""Who asks for the world's size: looked for where a model runs, not where torch compiles it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest
import torch

from harness.training.rank.inquiries import Inquiries


def test_a_compiler_is_not_looked_at_and_what_comes_after_it_is() -> None:
    """A gate that compiles a model of 24 blocks took half a minute longer for it."""
    inquiries = Inquiries(__file__, [])
    while_compiling = list[object]()

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        while_compiling.append(sys.getprofile())
        return graph.forward

    before = sys.getprofile()
    with inquiries.noted():
        torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.ones(2))
        assert sys.getprofile() == inquiries._look
    assert while_compiling == [None]
    assert sys.getprofile() is before


def test_another_thread_that_compiles_changes_nothing_here() -> None:
    inquiries = Inquiries(__file__, [])
    seen = list[object]()

    def compile_there() -> None:
        torch.compile(lambda x: x - 3, backend="eager")(torch.ones(2))
        seen.append(sys.getprofile())

    with inquiries.noted():
        thread = threading.Thread(target=compile_there)
        thread.start()
        thread.join()
        assert sys.getprofile() == inquiries._look
    assert seen == [None], "nor is that thread looked at"


def test_nothing_is_left_behind_by_a_step_that_breaks() -> None:
    inquiries = Inquiries(__file__, [])
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError), inquiries.noted():
        raise ZeroDivisionError
    torch.compile(lambda x: x / 7, backend="eager")(torch.ones(2))
    assert sys.getprofile() is before
