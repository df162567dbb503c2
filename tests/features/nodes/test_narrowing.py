"""The smallest set of nodes that reproduces a failure is found, in simulated and in real launches."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings, strategies as st

from harness.analysis.verify import verify
from harness.base.errors import Exit
from harness.cases import Catalogue, Device, Settings, Site
from harness.features.nodes.commands import network_isolate as verb
from harness.features.nodes.isolation import Isolator, Narrowing
from harness.interface.cli.main import main
from harness.launch.engines import emulated
from harness.launch.wire.messages import Deadlines
from harness.measure import bench
from harness.measure.progress import Progress
from harness.measure.session import Session


def narrowing(
    num_nodes: int, planted: set[int], seed: int = 0, often: float = 1.0, flakes: float = 0.0
) -> Narrowing:
    """Return a search over launches that fail with probability ``often`` if they include all
    injected nodes, and otherwise with probability ``flakes``.
    """
    draw = random.Random(seed)

    def launch(nodes: Sequence[int]) -> bool:
        return draw.random() < (often if planted <= {*nodes} else flakes)

    return Narrowing(range(num_nodes), launch)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.data())
def test_the_injected_nodes_are_found_exactly(num_nodes: int, data: st.DataObject) -> None:
    planted = data.draw(st.sets(st.integers(0, num_nodes - 1), min_size=1, max_size=5))
    search = narrowing(num_nodes, planted)
    needed = search.needed()
    assert {*needed} == planted
    assert search.others(needed) is (False if num_nodes > len(planted) else None)
    sets = len(planted) * (math.ceil(math.log2(num_nodes)) + 3) + 2
    assert all(tried.launches <= 5 for tried in search.tried)
    assert len(search.tried) <= sets


def test_without_failures_no_node_is_named() -> None:
    search = narrowing(8, {9})
    assert search.needed() == () and len(search.tried) == 1
    assert search.tried[0].launches == 20 and search.tried[0].broke == 0


@pytest.mark.parametrize(("often", "flakes"), [(1.0, 0.01), (0.5, 0.0), (0.5, 0.01)])
def test_random_failures_and_intermittent_hangs_are_tolerated(often: float, flakes: float) -> None:
    """One launch in a hundred fails on any nodes, and the hang of 3 of 16 nodes may occur only
    every second time.
    """
    right = 0
    for seed in range(200):
        planted = {*random.Random(seed).sample(range(16), 3)}
        right += {*narrowing(16, planted, seed, often, flakes).needed()} == planted
    assert right >= 180


def test_several_possible_causes_are_reported() -> None:
    """Any three of the nodes hang: three are named, and the others are reported to hang as well."""
    search = Narrowing(range(8), lambda nodes: len(nodes) >= 3)
    needed = search.needed()
    assert len(needed) == 3 and search.others(needed) is True


@pytest.mark.full
def test_a_real_hang_that_needs_three_of_eight_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use real agents and ranks, one node each; the hang is found by a time-out, and needs all
    three nodes.
    """
    if not (here := emulated.build().probe()).available:
        pytest.skip(here.reason)
    quick = Deadlines(first_step_s=60.0, step_s=4.0, collective_s=4.0, meet_s=20.0)
    monkeypatch.setattr(bench, "_USUAL", quick)
    known = Catalogue([Path(__file__).parent / "strategies"])
    nodes = (1,) * 8
    site = Site(device=Device.CPU, backend="gloo", nodes=nodes, engine="emulated", emulated=True)
    case = site.case("hanging_ddp/mlp-nano", knobs={"hanging_ddp.planted": "1+4+6"}).at(1, (1,))
    settings_ = Settings(engine="emulated", nodes=nodes, fabric=False)
    with Session(known, settings_, tmp_path, (), Progress()) as session:
        isolator = Isolator(session, site, known.normalise(case), steps=5)
        search = Narrowing(range(8), isolator.breaks)
        needed = search.needed()
        assert needed == (1, 4, 6), search.tried
        assert search.others(needed) is False
        record = session.save(complete=True)
    assert not verify(record, session.run.folder).differences
    assert any(launch.cause and launch.cause.kind == "hang" for launch in record.launches)


@pytest.mark.parametrize(
    ("often", "exit_", "message"),
    [(1.0, Exit.FAILED, "NEEDED  n1, n2"), (0.0, Exit.PASSED, "0 of 20"),
     (0.05, Exit.INCONCLUSIVE, "too rarely to bisect")],
)  # fmt: skip
def test_isolate_prints_the_failing_nodes_and_sets_the_exit_status(
    often: float, exit_: Exit, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    search = narrowing(4, {1, 2}, seed=1, often=often)
    stub = SimpleNamespace(
        breaks=search.launch, hosts=tuple(f"n{i}" for i in range(4)), why="silent for 20 s"
    )
    session = SimpleNamespace(
        save=lambda complete: None, run=SimpleNamespace(folder=tmp_path, name="r", notes=[])
    )
    monkeypatch.setattr(verb.measuring, "session", lambda *_: contextlib.nullcontext(session))
    monkeypatch.setattr(verb, "Isolator", lambda *_: stub)
    assert main(["network", "isolate", "--engine", "emulated", "--nodes", "4x1"]) == exit_
    out = capsys.readouterr().out
    assert message in out and ("launches on the other nodes succeed" in out) is (often == 1)
    assert session.run.notes[0].startswith("isolate: ") and message in session.run.notes[0]
