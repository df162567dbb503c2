"""Closed forms of communication match in worlds that are too large to launch here.

One rank of 8, 64 and 1,024 trains alone on torch's fake backend. Its calls and bytes are compared
with the closed form, and with golden/dry_runs.json.

    python -m tests.training.dry.test_dry_runs              # write that file, in half an hour
    python -m tests.training.dry.test_dry_runs --missing    # add missing entries
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from harness.cases import CaseSpec, Catalogue, Device, Mesh, Precision, Site
from tests.training.dry.alone import Dry, dry

GOLDEN = Path(__file__).parents[2] / "golden" / "dry_runs.json"
WORLDS = (8, 64, 1024)
KNOWN = Catalogue()
ENTRIES = KNOWN.entries
#: Models; a strategy trains the first one that it supports.
MODELS = ("mlp", "decoder", "moe", "dlrm")
#: Strategies that are left out because their ranks use RPC, which needs other ranks.
APART = ("parameter_server",)
STRATEGIES = [
    name for name, entry in ENTRIES["strategies"].items()
    if name not in ("single", "compressed", *APART) and not entry.supports.packages
]  # fmt: skip
CODECS = [
    f"compressed:{name}" for name, e in ENTRIES["compressors"].items() if not e.head.get("CONTROL")
]
#: Strategies that CI tests; the others are -m full.
SOON = ("ddp", "fsdp", "pipeline", "tensor_parallel", "compressed:int8")


def case_of(strategy: str, world: int) -> CaseSpec:
    """Return a case of the strategy with its smallest model, on nodes of eight ranks."""
    supports = ENTRIES["strategies"][strategy.partition(":")[0]].supports
    model = next(
        m for m in MODELS if not supports.misses(ENTRIES["models"][m].head, Precision.FP32)
    )
    size = next(iter(ENTRIES["models"][model].head["SIZES"]))
    site = Site(device=Device.CPU, backend="nccl", nodes=(8,) * (world // 8))
    cut = supports.products and supports.dims[0] in ("tp", "cp", "pp", "ep")
    mesh = str(Mesh.parse(supports.products[0]).at(world)) if cut else ""
    return KNOWN.normalise(site.case(f"{strategy}/{model}-{size}", mesh=mesh))


def told(strategy: str, world: int) -> dict[str, Any]:
    """Return calls and bytes by rank and operation, or the reason of a refusal."""
    case = case_of(strategy, world)
    out: dict[str, Any] = {}
    for rank in (0, world // 2, world - 1):
        outcome = dry(case, rank)
        if isinstance(outcome, str):
            return {"refused": outcome.strip().splitlines()[-1]}
        out[str(rank)] = {k: [outcome.calls[k], outcome.issued[k]] for k in sorted(outcome.issued)}
        check(outcome, f"{case.id} rank {rank}")
    return out


def check(dry_run: Dry, where: str) -> None:
    """Compare bytes as the correctness check does, within half a percent and a few bytes."""
    for name in sorted({*dry_run.promised, *dry_run.issued}):
        want, seen = dry_run.promised.get(name, 0.0), dry_run.issued.get(name, 0)
        assert abs(seen - want) <= 0.005 * want + 64, f"{where}: {name} {seen} of {want:.0f} bytes"


CELLS = [
    pytest.param(s, n, marks=[pytest.mark.full] * (s not in SOON or n == 64))
    for s in (*STRATEGIES, *CODECS)
    for n in WORLDS
]


@pytest.mark.parametrize(("strategy", "world"), CELLS)
def test_a_rank_issues_the_promised_bytes_and_the_recorded_calls(strategy: str, world: int) -> None:
    golden = json.loads(GOLDEN.read_text())
    assert told(strategy, world) == golden[strategy][str(world)]


def test_unexpected_bytes_are_found() -> None:
    for issued in ({"all_reduce": 10_000}, {"all_gather": 9_000}, {}):
        with pytest.raises(AssertionError, match="bytes"):
            check(Dry({}, issued, {"all_reduce": 9_000.0}), "a rank")
    check(Dry({}, {"all_reduce": 9_020}, {"all_reduce": 9_000.0}), "a rank")


def write(names: list[str], kept: dict[str, Any]) -> None:
    """Write the file after each strategy, so that an interruption keeps finished ones."""
    for name in names:
        kept[name] = {str(n): told(name, n) for n in WORLDS}
        rows = {n: kept[n] for n in (*STRATEGIES, *CODECS) if n in kept}
        GOLDEN.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--missing", action="store_true", help="only add missing entries")
    before = json.loads(GOLDEN.read_text()) if parser.parse_args().missing else {}
    write([n for n in (*STRATEGIES, *CODECS) if n not in before], before)
