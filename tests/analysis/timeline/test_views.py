"""The parts of a profiled window: kernels by term and launcher, causes of idle time,
communications.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.close import close
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.views import (
    PYTHON,
    ShownBudget,
    communications,
    idleness,
    kernels,
    names,
    terms,
)
from harness.interface.cli.main import main
from harness.record import Operator, Term
from tests.analysis.timeline.writing import event, step, write

US, MS = 1000, 1_000_000


def window(*paths: Path, step_name: str | None = None) -> ShownBudget:
    traces = [read(path) for path in paths]
    rank_lanes = [sorted_lanes(trace, i, step_name) for i, trace in enumerate(traces)]
    return ShownBudget(traces=traces, lanes=rank_lanes, closed=close(rank_lanes))


def launch(k: int, call: int, start: int, end: int, name: str = "gemm", **args: Any) -> list[Any]:
    """Return a kernel from ``start`` to ``end`` us and the call that launched it, which takes 5 us."""
    return [
        event("cudaLaunchKernel", call * US, (call + 5) * US, "cuda_runtime", correlation=k),
        event(name, start * US, end * US, "kernel", 7, 0, correlation=k, stream=7, **args),
    ]


def device_step(base: int, k: int, slow: int = 0) -> list[Any]:
    """Return a step of 1 ms on the device: 300 us in two kernels, 100 us of synchronization, the
    rest in Python.
    """
    return [
        step(k, base * US, (base + 1000) * US),
        event("aten::linear", (base + 10) * US, (base + 60) * US),
        event("aten::addmm", (base + 20) * US, (base + 40) * US),
        *launch(10 * k + 1, base + 22, base + 30, base + 230 + slow, "void gemm<float>(int)"),
        *launch(10 * k + 2, base + 45, base + 230 + slow, base + 330 + slow, "relu"),
        event("aten::item", (base + 350) * US, (base + 500) * US),
        event("cudaStreamSynchronize", (base + 380) * US, (base + 480) * US, "cuda_runtime"),
        *launch(10 * k + 3, base + 900, base + 905, base + 1000, "adam"),
    ]


@pytest.fixture
def traced(tmp_path: Path) -> ShownBudget:
    events = [e for k in range(3) for e in device_step(1000 * k, k)]
    return window(write(tmp_path / "rank0.json", events, rank=0, world_size=1))


def test_kernels_are_listed_by_term_with_the_operator_that_launched_them(
    traced: ShownBudget,
) -> None:
    by_name = {k.name: (k.term, k.by, k.ns, k.count) for k in kernels(traced)}
    assert by_name == {
        "void gemm<float>(int)": (Term.COMPUTE, "aten::addmm", 200 * US, 1.0),
        "relu": (Term.COMPUTE, "aten::linear", 100 * US, 1.0),
        "adam": (Term.COMPUTE, "", 95 * US, 1.0),
    }


def test_idle_time_is_attributed_to_the_activity_of_the_host(traced: ShownBudget) -> None:
    """The causes add up to the budget's idle term, so no idle time lacks a cause."""
    counts: Counter[tuple[Term, str]] = Counter()
    for activity in idleness(traced, most=99):
        counts[activity.term, activity.cause] += activity.ns // US
    idle = sum(us for (term, _), us in counts.items() if term is Term.IDLE)
    assert idle == traced.closed.budget.mean_ns(Term.IDLE) / US
    assert counts[Term.IDLE, "waits for the device"] == 100
    # aten::item takes 50 us, and the start of aten::linear 12 us.
    assert counts[Term.IDLE, "an operator works on the host"] == 50 + 12
    assert counts[Term.IDLE, PYTHON] == 20 + 400 + 10
    (sync,) = [i for i in idleness(traced) if i.cause == "waits for the device"]
    assert sync.where == "cudaStreamSynchronize"


def ranks_of(folder: Path, delay: int) -> ShownBudget:
    """Return two ranks that all-reduce 1,000 floats per step; rank 1 arrives ``delay`` us later."""
    paths = []
    for rank in (0, 1):
        late = delay * rank
        events = []
        for k in range(3):
            base = 1000 * k
            events += [step(k, base * US, (base + 1000) * US)]
            events += launch(10 * k + 1, base + 5, base + 10, base + 100 + late)
            events += launch(
                10 * k + 2, base + 20, base + 100 + late, base + 100 + delay + 50,
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage)",
                **{"Collective name": "allreduce", "In msg nelems": 1000, "dtype": "Float",
                   "Process Group Name": "0", "Process Group Ranks": "[0, 1]", "Group size": 2},
            )  # fmt: skip
        paths.append(write(folder / f"rank{rank}.json", events, rank=rank, world_size=2))
    return window(*paths)


def test_a_communication_shows_its_late_rank_and_its_rate(tmp_path: Path) -> None:
    (exchange,) = communications(ranks_of(tmp_path, delay=200))
    assert (exchange.kind, exchange.ranks, exchange.bytes, exchange.count) == (
        "all_reduce",
        (0, 1),
        4000,
        1.0,
    )
    assert (exchange.late, exchange.late_share) == (1, 1.0)
    assert (
        exchange.shortest_ns == 50 * US and exchange.waited_ns == 100 * US
    )  # Only rank 0 waits, for 200 us, so the mean is 100 us.
    # The factor 2 (n - 1) / n is 1 for two ranks.
    assert exchange.bus_bps == pytest.approx(4000 / 50e-6)


def test_a_communication_without_known_bytes_has_no_rate(tmp_path: Path) -> None:
    paths = [
        write(
            tmp_path / f"rank{r}.json",
            [e for k in range(3) for e in [
                step(k, 1000 * k * US, 1000 * (k + 1) * US),
                *launch(2 * k + 1, 1000 * k + 5, 1000 * k + 10, 1000 * k + 60, "ncclKernel_AllReduce"),
            ]],
            rank=r, world_size=2,
        )
        for r in (0, 1)
    ]  # fmt: skip
    (exchange,) = communications(window(*paths))
    assert exchange.bytes == -1 and exchange.bus_bps is None


def test_changes_of_terms_add_up_to_the_change_of_the_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = write(tmp_path / "a.json", [e for k in range(3) for e in device_step(1000 * k, k)])
    b = write(tmp_path / "b.json", [e for k in range(3) for e in device_step(1000 * k, k, 70)])
    was, now = (window(p).closed.budget for p in (a, b))
    changes = terms(was, now)
    assert sum(c.more_ns for c in changes) == pytest.approx(now.step_ns - was.step_ns)
    assert {c.name: c.more_ns / US for c in changes}[Term.COMPUTE] == pytest.approx(70)
    assert main(["report", "timeline", str(a), "--against", str(b), "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["windows"]
    assert document["names"][0]["name"] == "void gemm<float>(int)"
    assert main(["report", "timeline", str(a), "--against", str(b)]) == 0
    assert "+0.07" in capsys.readouterr().out


def test_a_name_missing_in_a_truncated_list_is_not_a_change() -> None:
    """A record stores the eight longest operators of a window, so a missing one is not 0."""
    was = [Operator(name="mm", self_ns=9, count=1), Operator(name="add", self_ns=5, count=1)]
    now = [Operator(name="mm", self_ns=7, count=1)]
    assert [c.name for c in names(was, now, whole=False)] == ["mm"]
    assert [c.name for c in names(was, now, whole=True)] == ["add", "mm"]


def test_runs_without_a_common_window_are_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = Path(__file__).parents[3] / "tests" / "golden" / "samples" / "ddp-nano"
    path = write(tmp_path / "a.json", device_step(0, 0))
    assert main(["report", "timeline", str(sample), "--against", str(path)]) == 4
    assert "no window in common" in capsys.readouterr().err


def test_steps_may_be_any_annotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Inference and other loops have no ProfilerStep, so any annotation can be named as the step."""
    events = [e for k in range(3) for e in device_step(1000 * k, k)]
    for e in events:
        e["name"] = e["name"].replace("ProfilerStep#", "decode_")
    path = write(tmp_path / "a.json", [*events, event("warm", 0, 10, "user_annotation")])
    named = window(path, step_name="decode_*").closed.budget
    assert named.steps == 2 and named.step_ns == 1000 * US
    assert main(["report", "timeline", str(path), "--step-name", "step"]) == 4
    assert "no annotation is named 'step'" in capsys.readouterr().err


def test_a_repeated_annotation_is_suggested_as_the_step(tmp_path: Path) -> None:
    events = [
        event("decode", 1000 * k * US, 1000 * (k + 1) * US, "user_annotation") for k in (0, 1)
    ]
    path = write(tmp_path / "a.json", [*events, *launch(1, 5, 10, 100)])
    assert any(
        "--step-name" in why and "decode (2x)" in why for why in sorted_lanes(read(path)).unsure
    )


def test_details_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks_of(tmp_path, delay=200)
    paths = [str(tmp_path / f"rank{r}.json") for r in (0, 1)]
    assert main(["report", "timeline", *paths, "--details"]) == 0
    out = capsys.readouterr().out
    assert "rank 1 100%" in out and "4 kB" in out and "launched by" in out
    assert main(["report", "timeline", *paths, "--details", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["windows"]
    assert {"communications", "kernels", "idleness"} <= document.keys()
