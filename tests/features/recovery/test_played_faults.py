"""A training is killed on a schedule, resumes from its checkpoints, and its time adds up."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest

from harness.analysis.verify import verify
from harness.cases import Catalogue, Device, Settings, Site
from harness.features.recovery import goodput
from harness.features.recovery.player import Player
from harness.interface.cli.main import main
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import store
from harness.record.recovery import Mark

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.mark.full
def test_the_costs_of_faults_add_up_to_the_wall_clock(tmp_path: Path) -> None:
    """Three faults occur, each after the restart of the previous one; every step is trained in the
    end.
    """
    case = Catalogue().normalise(SITE.case("ddp/mlp-nano"))
    session = Session(Catalogue(), Settings(nodes=(2,), fabric=False), tmp_path, (), Progress())
    with session:
        faults = itertools.chain([(0.5, 1), (1.5, 0), (3.0, 1)], [(math.inf, 0)])
        played = Player(session).play(case, 3200, 40, faults, mtbf_s=0.7, seed=3)
        record = session.save(complete=True)
    assert len(played.sittings) == 4
    assert [s.rank for s in played.sittings] == [1, 0, 1, None]
    steps = {step for s in played.sittings for mark, step, _ in s.marks if mark is Mark.STEP}
    assert steps == set(range(1, 3201))
    terms = goodput.terms_ns(played)
    assert sum(terms.values()) == goodput.wall_ns(played)
    assert all(terms[t] > 0 for t in ("train", "detect", "stop", "restart", "load", "recomputed"))
    assert store.load(session.run.folder).played == (played,)
    assert not verify(record, session.run.folder).differences


@pytest.mark.full
def test_the_goodput_command_predicts_and_measures(tmp_path: Path, capsys: object) -> None:
    words = ["faults", "goodput", "ddp/mlp-nano", "--cpus", "2", "--mtbf", "2s", "--steps", "300"]
    assert main([*words, "--results", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)  # type: ignore[attr-defined]
    assert 0 < document["measured"] <= 1 and 0 < document["foretold"] <= 1
    assert document["every"] == min(document["best_every"], 300)
    (folder,) = tmp_path.glob("runs/*/*")
    assert "of the wall clock trained" in (folder / "report.html").read_text()
