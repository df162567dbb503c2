"""Queries of the world size are recorded while a model runs, but not while torch compiles it."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from harness.training import rank
from harness.training.rank.gate_checks import WorldSizeQueries


@pytest.fixture
def one_rank() -> Iterator[None]:
    """Open a process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_compiler_is_not_profiled_but_later_code_is() -> None:
    """Profiling the compiler would lengthen the check of a 24-block model by half a minute."""
    inquiries = WorldSizeQueries(__file__, [])
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
    inquiries = WorldSizeQueries(__file__, [])
    seen = list[object]()

    def compile_there() -> None:
        torch.compile(lambda x: x - 3, backend="eager")(torch.ones(2))
        seen.append(sys.getprofile())

    with inquiries.noted():
        thread = threading.Thread(target=compile_there)
        thread.start()
        thread.join()
        assert sys.getprofile() == inquiries._look
    assert seen == [None], "the other thread is not profiled"


def test_a_failed_step_removes_the_profiler() -> None:
    inquiries = WorldSizeQueries(__file__, [])
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError), inquiries.noted():
        raise ZeroDivisionError
    torch.compile(lambda x: x / 7, backend="eager")(torch.ones(2))
    assert sys.getprofile() is before


def package(folder: Path, name: str) -> Path:
    """Write a module that queries the world size."""
    home = folder / name
    home.mkdir()
    file = home / f"{name}.py"
    file.write_text(
        "import os, torch.distributed as dist\n"
        "class Part:\n"
        "    def asks(self, *_):\n"
        "        os.environ.get('WORLD_SIZE')\n"
        "        dist.get_world_size()\n"
        "asks = Part().asks\n"
    )
    return file


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("caller", ["model", "strategy", "hook"])
def test_a_librarys_query_is_attributed_to_its_caller(
    one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool, caller: str
) -> None:
    """Queries of a library are attributed to its caller: a strategy may ask, a model may not."""
    name = f"asks_{installed}_{caller}".lower()
    file = package(tmp_path, name)
    if installed:
        monkeypatch.setattr(rank.sources, "_installed", lambda: (file.parent.resolve(),))
    rank.sources.is_installed.cache_clear()
    monkeypatch.syspath_prepend(str(file.parent))
    asks = importlib.import_module(name).asks
    other = str(tmp_path / "other.py")
    model, allowed = (other, [__file__]) if caller == "strategy" else (__file__, [other])
    inquiries = WorldSizeQueries(model, allowed)
    layer = torch.nn.Linear(1, 1)
    layer.register_forward_pre_hook(asks)
    with inquiries.noted():
        layer(torch.ones(1, 1)) if caller == "hook" else asks()
    rank.sources.is_installed.cache_clear()
    where = {place.partition(":")[0] for place in inquiries.where}
    helper = set() if installed else {file.name}
    expected = {"model": {Path(__file__).name}, "strategy": set(), "hook": helper}
    assert where == expected[caller]
