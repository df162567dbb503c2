"""Advice names a remedy that fits its term and a command that runs as printed."""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.rerun_command import command
from harness.analysis.timeline.advice import advice, starved
from harness.analysis.timeline.losses import Losses
from harness.base.stats import evenly
from harness.cases import Catalogue, Device, Mode, Precision, Settings, Site
from harness.cases.targets import plans_of
from harness.interface.cli import measuring
from harness.interface.cli.main import main
from harness.record import Term

KNOWN, SITE = Catalogue(), Site(device=Device.CPU, backend="gloo", nodes=(2,))
SETTINGS = Settings(nodes=(2,))
CASES = {
    "weak": SITE.case("ddp/mlp-nano"),
    "knobs": SITE.case("ddp/mlp-nano", knobs={"ddp.bucket_cap_mb": 5.0}, precision=Precision.BF16),
    "strong": SITE.case("ddp/mlp-nano", Mode.STRONG, global_batch=32),
    "codec": SITE.case("compressed:topk/mlp-nano", data="loaded"),
    "files": SITE.case("ddp/mlp-nano", data="files", knobs={"files.workers": 1}),
    "pipeline": SITE.case("pipeline/mlp-small"),
}


def told(name: str, *terms: Term, lost: bool = True, **fields: Any) -> list[str]:
    case = dataclasses.replace(KNOWN.normalise(CASES[name]), **fields)
    stages = 2 if name == "pipeline" else 1
    remedies = {"bubble": "pipeline.microbatches=16"} if stages > 1 else {}
    expected: Any = SimpleNamespace(global_batch=32, stages=stages, remedies=remedies, blocks=())
    losses = Losses(
        ranks=2, step_ns=Fraction(100), ideal_ns=Fraction(50 if lost else 101),
        excess_ns={t: Fraction(10) for t in terms},
    )  # fmt: skip
    budget: Any = SimpleNamespace(blame=None)
    return [str(a) for a in advice(case, expected, losses, budget, SETTINGS)]


@pytest.mark.parametrize("term", list(Term))
@pytest.mark.parametrize("name", CASES)
def test_every_command_runs_as_it_is_printed(
    name: str, term: Term, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if term is Term.BUBBLE and name != "pipeline":
        return
    (line,) = told(name, term)
    words = shlex.split(line.partition("; try scaleproof ")[2])
    if words[0] == "check":
        assert term in (Term.COMPUTE, Term.WAIT, Term.MOVE, Term.DATA)
        return
    assert main([*words, "--dry-run"]) == 0
    asked: Any = SimpleNamespace(set=[w for w in words if re.match(r"[\w.]+=", w)])
    settings = measuring.settings(SimpleNamespace(options=asked))  # type: ignore[arg-type]
    (plan, *_) = plans_of(words[1], SITE, KNOWN, settings, [])
    case, mine = plan.arms[-1].case, KNOWN.normalise(CASES[name])
    assert (case.family, case.precision) == (mine.family, mine.precision)
    assert mine.knobs.items() <= {**mine.knobs, **case.knobs}.items()
    assert case.hash != mine.hash or "--ablate" in words, "the command must run a different case"


@pytest.mark.parametrize(
    ("stall_ns", "read_s", "told_of"),
    [
        (2e6, 0.04, "take 50.0 ms a batch, 80% of it for reading"),
        (2e6, 0.0025, "80% of it for decoding"),
        (1e5, 1.0, ""),
    ],
)
def test_a_data_stall_is_reported_with_its_cause(
    stall_ns: float, read_s: float, told_of: str
) -> None:
    budget: Any = SimpleNamespace(step_ns=10e6, mean_ns=lambda term: stall_ns)
    found = starved(CASES["files"], budget, {"read_s": read_s, "decode_s": 0.01})
    assert told_of in found and bool(found) == bool(told_of)


def test_no_advice_is_given_without_a_loss() -> None:
    assert told("weak", Term.TRANSFER, lost=False) == []


def test_no_advice_is_given_on_simulated_compute() -> None:
    case = KNOWN.normalise(SITE.case("ddp/paced-small"))
    stand_in = {"stand_in": case.stand_in, "model": "paced", "size": "small"}
    assert case.stand_in and told("weak", Term.COMPUTE, **stand_in) == []
    assert told("weak", Term.TRANSFER, **stand_in) != []


def test_a_printed_command_keeps_engine_and_nodes() -> None:
    case = dataclasses.replace(CASES["weak"], nodes=(2, 2), world_size=4)
    words = command(case, Settings(engine="emulated", nodes=(2, 2), cluster="my cluster.toml"))
    assert words == (
        "scaleproof run ddp/mlp-nano/weak --cpus 4 --engine emulated --nodes 2+2"
        " --cluster 'my cluster.toml'"
    )


def uneven(busy_ms: list[float], blocks: tuple[int, ...]) -> list[str]:
    """Return the advice for a pipeline whose stages compute for these times."""
    case = KNOWN.normalise(dataclasses.replace(CASES["pipeline"], world_size=2, nodes=(2,)))
    expected: Any = SimpleNamespace(global_batch=32, stages=2, remedies={}, blocks=blocks)
    losses = Losses(ranks=2, step_ns=Fraction(100), ideal_ns=Fraction(50), excess_ns={})
    ranks = [SimpleNamespace(mean_ns=lambda *_, ms=ms: ms * 1e6) for ms in busy_ms]
    budget: Any = SimpleNamespace(blame=None, ranks=ranks, total_ns=lambda _: 1, step_ns=1e8)
    return [str(a) for a in advice(case, expected, losses, budget, SETTINGS)]


def test_advice_for_an_uneven_pipeline_names_the_layers_to_move() -> None:
    (line,) = uneven([70.0, 30.0], (7, 3))
    assert "move 2 layers from stage 0 to stage 1" in line
    assert "--set pipeline.split=5,5" in line
    assert uneven([45.0, 45.0], (5, 4)) == []


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
def test_an_even_split_minimizes_the_largest_part(parts: int) -> None:
    costs = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0]
    counts = evenly(costs, parts)
    ends = [0, *itertools.accumulate(counts)]
    largest = max(sum(costs[a:b]) for a, b in itertools.pairwise(ends))
    every = itertools.combinations(range(1, len(costs)), parts - 1)
    assert largest == min(
        max(sum(costs[a:b]) for a, b in itertools.pairwise([0, *cut, len(costs)])) for cut in every
    )
