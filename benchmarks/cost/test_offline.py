"""The cost of code that needs no ranks: read, judge and render runs, list names, collect suites."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.verify import verify
from harness.base.documents import from_doc
from harness.interface.report.page.page import render
from harness.record import SCHEMA, RunRecord
from harness.record.store import load, save
from harness.record.upgrade import upgrade

ROOT = Path(__file__).parents[2]
#: The environment of a user, in which imported modules are cached as bytecode.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
SAMPLE = ROOT / "results" / "samples" / "ddp-nano"


def test_load(benchmark: Any) -> None:
    assert benchmark(load, SAMPLE).complete


def test_save(benchmark: Any, tmp_path: Path) -> None:
    benchmark(save, load(SAMPLE), tmp_path)


def test_judge(benchmark: Any) -> None:
    assert benchmark(verdicts, load(SAMPLE))


def test_verify(benchmark: Any) -> None:
    assert not benchmark(verify, load(SAMPLE), SAMPLE).differences


def test_page(benchmark: Any) -> None:
    assert "<svg" in benchmark(render, load(SAMPLE), SAMPLE)


def test_page_of_sixteen_cases(benchmark: Any) -> None:
    """The page of a record with sixteen cases should take at most 2 s."""
    text = gzip.decompress((ROOT / "tests/golden/main-job.json.gz").read_bytes())
    run = from_doc(RunRecord, upgrade(json.loads(text), SCHEMA))
    assert len({a.case.hash for p in run.plans for a in p.arms}) >= 16
    assert "<svg" in benchmark(render, run)


def test_page_of_five_hundred_cases(benchmark: Any) -> None:
    """A page with 167 copies of the sample's scaling sweep should take at most 10 s."""
    run = many(load(SAMPLE), 167)
    page = benchmark.pedantic(render, (run, SAMPLE), rounds=3)
    assert page.count('class="case"') >= 500


def many(run: RunRecord, times: int) -> RunRecord:
    """Return a run that repeats its plan with differently named models."""
    (plan,) = run.plans
    plans, launches, verdicts_, described = [], list(run.launches), [], dict(run.described)
    for i in range(times):
        cases = {a.name: replace(a.case, model=f"model{i}") for a in plan.arms}
        other = replace(
            plan, name=f"ladder {i}",
            arms=tuple(replace(a, case=cases[a.name]) for a in plan.arms),
        )  # fmt: skip
        plans.append(other)
        described |= {cases[a.name].hash: run.described[a.case.hash] for a in plan.arms}
        launches += [replace(x, plan=other.hash, case=cases[x.arm].hash) for x in run.launches]
        subjects = {c.name: cases[c.subject] for c in plan.contrasts}
        verdicts_ += [
            replace(v, plan=other.hash, case=subjects[v.contrast].id,
                    case_hash=subjects[v.contrast].hash)
            for v in run.verdicts
        ]  # fmt: skip
    return replace(
        run, plans=tuple(plans), launches=tuple(launches), verdicts=tuple(verdicts_),
        described=described,
    )  # fmt: skip


def test_list(benchmark: Any) -> None:
    """The time includes the interpreter, imports and the scan of folders."""
    command = [sys.executable, "-m", "harness", "run", "list"]

    def run() -> int:
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, check=False
        )
        return done.returncode

    assert benchmark.pedantic(run, rounds=5, warmup_rounds=1) == 0


def test_collecting_five_hundred_cases(benchmark: Any, tmp_path: Path) -> None:
    """The time of ``pytest --collect-only`` includes the plugin and 125 sweeps of 4 world sizes."""
    (tmp_path / "test_many.py").write_text(
        "from harness import scaling\n"
        "from harness.cases.recipes import ladder\n"
        "def many(site):\n"
        "    return [ladder(site.case('ddp/mlp-nano', micro_batch=i + 1), (1, 2, 4, 8))"
        " for i in range(125)]\n"
        "@scaling(many)\n"
        "def test_ladder(verdict): ...\n"
    )
    command = [
        sys.executable, "-m", "pytest", "-p", "no:hypothesispytest",  # only this project's plugin
        "--collect-only", "-q", "--cpus", "8", str(tmp_path),
    ]  # fmt: skip

    def run() -> str:
        done = subprocess.run(
            command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        return done.stdout

    items = benchmark.pedantic(run, rounds=3, warmup_rounds=1)
    assert items.count("::test_ladder") >= 500, items[-500:]
