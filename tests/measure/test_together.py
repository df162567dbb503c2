"""The record of a packed sweep on emulated nodes states which launches ran together, and where."""

from __future__ import annotations

import math
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from harness.analysis import audit
from harness.analysis.judging import biases
from harness.cases import Catalogue, Device, Protocol, Settings, Site
from harness.cases.recipes import ladder
from harness.cases.targets import normalise
from harness.launch.engine import make
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import LaunchRecord, Purpose, RunRecord, chain
from harness.record.launch import STALLS, STOOD_STILL

NODES = (1, 1, 1)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path]:
    known = Catalogue()
    engine = make(known.get("engines", "emulated"))
    if not (here := engine.probe()).available:
        pytest.skip(here.reason)
    site = Site(device=Device.CPU, backend="gloo", nodes=NODES, engine="emulated", emulated=True)
    case = site.case("ddp/paced-small", knobs={"paced.step_ms": 5.0})
    plan = normalise(
        ladder(
            case, (2, 3), baselines=("plain",),
            protocol=Protocol(steps=4, cut=1, max_blocks=2), shape=lambda world: (1,) * world,
        ),
        known,
    )  # fmt: skip
    settings = Settings(engine="emulated", nodes=NODES, timeline=False, fabric=False)
    session = Session(known, settings, tmp_path_factory.mktemp("packed"), (), Progress())
    with session, pytest.MonkeyPatch.context() as patched:
        # A busy host must not separate the worlds.
        patched.setattr(biases, "LEAST_SLOWDOWN", math.inf)
        Measurer(session).measure([plan])
        return session.save(complete=True), session.run.folder


@pytest.mark.full
def test_small_worlds_run_concurrently_on_different_nodes(
    packed: tuple[RunRecord, Path],
) -> None:
    run, _ = packed
    slots: dict[str, list[int]] = {}
    for x in run.launches:
        assert len(x.hosts) == len(x.ranks) and {r.node for r in x.ranks} == set(x.hosts)
        if x.slot:
            slots.setdefault(x.slot, []).extend(x.hosts)
    assert all(count == 1 for hosts in slots.values() for count in Counter(hosts).values())
    timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
    assert {x.arm: bool(x.slot) for x in timed} == {"plain": True, "@2": True, "@3": False}
    baselines = {x.hosts for x in timed if x.arm == "plain"}
    assert len(baselines) > 1, "the baseline is drawn, not always on the first node"


@pytest.mark.full
def test_the_baseline_is_probed_alone_and_on_every_node(packed: tuple[RunRecord, Path]) -> None:
    probes = [x for x in packed[0].launches if x.purpose is Purpose.PROBE]
    assert [bool(x.slot) for x in probes] == [False, True, True, True]
    assert sorted(x.hosts for x in probes[1:]) == [(0,), (1,), (2,)]


@pytest.mark.full
def test_the_record_is_consistent_and_a_moved_launch_is_found(
    packed: tuple[RunRecord, Path], tmp_path: Path
) -> None:
    run, folder = packed
    links = chain.read(folder)
    assert audit.audit(run, folder, links) == []
    other = {host: {**facts, "version: torch": "2.0"} for host, facts in run.facts.items()}
    (finding,) = audit.audit(replace(run, facts=other), folder, links)
    assert finding == "facts differs from what was sealed before the first launch"
    shutil.copytree(folder, tmp_path / "copy")
    first = next(i for i, x in enumerate(run.launches) if x.slot and x.purpose is Purpose.TIMED)
    for doctored in (
        replace(run.launches[first], hosts=tuple((h + 1) % 3 for h in run.launches[first].hosts)),
        replace(run.launches[first], slot=""),
    ):
        launches = (*run.launches[:first], doctored, *run.launches[first + 1 :])
        finding = audit.audit(replace(run, launches=launches), tmp_path / "copy", links)
        assert any("its seed draws" in what for what in finding), finding


@pytest.mark.full
def test_a_stalled_host_repeats_the_slot_with_the_same_placement(
    packed: tuple[RunRecord, Path], tmp_path: Path
) -> None:
    """Otherwise the order and the placements would not be those that the seed draws."""
    run, folder = packed
    timed = [x for x in run.launches if x.purpose is Purpose.TIMED]
    slot = [x for x in timed if x.slot == next(x.slot for x in timed if x.slot)]
    assert len(slot) > 1
    scheduled = tuple(replace(r, planted_s=0.005) for r in slot[0].ranks)
    still = replace(slot[0], wrong=(f"{STOOD_STILL}: 3 ms late",), ranks=scheduled)
    late = [still, *slot[1:]]
    session = Session(Catalogue(), run.settings, tmp_path, (), Progress())
    tries = [[replace(x, slot=f"try-{i}") for x in late] for i in range(STALLS + 1)]
    entered = [session.run.enter(launches) for launches in tries]
    assert [{x.purpose for x in xs} for xs in entered] == [{Purpose.STALLED}] * STALLS + [
        {Purpose.TIMED}
    ]
    broken = replace(slot[1], wrong=("it sent too much",))
    assert session.run.enter([replace(still, plan="other"), broken])[0].purpose is Purpose.TIMED

    def told(*again: LaunchRecord) -> list[str]:
        at = run.launches.index(slot[0])
        launches = (*run.launches[:at], *again, *run.launches[at:])
        complaints = audit.audit(replace(run, launches=launches, head=""), folder, [])
        return [text for text in complaints if re.search("order|seed draws|stood still", text)]

    assert told(*entered[0]) == []
    wrong = replace(broken, purpose=Purpose.STALLED, slot=entered[0][0].slot)
    assert len(told(entered[0][0], wrong)) >= 1
