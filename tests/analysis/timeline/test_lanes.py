"""The lane that each event belongs to, on small hand-written traces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.close import close
from harness.analysis.timeline.lanes import Lanes
from harness.analysis.timeline.reader import read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.record import Budget, Term
from tests.analysis.timeline.writing import BASE_NS, event, step, write


def of(tmp_path: Path, *events: dict[str, Any], rank: int = 0, world: int = 1) -> Lanes:
    return sorted_lanes(
        read(write(tmp_path / f"rank{rank}.json", events, rank=rank, world_size=world))
    )


def found(budget: Budget, rank: int = 0, k: int = 0) -> dict[str, int]:
    return {t: v[k] for t, v in budget.ranks[rank].terms.items() if v[k]}


def note(name: str, start: int, end: int, tid: int = 1) -> dict[str, Any]:
    return event(name, start, end, "user_annotation", tid)


# --- on the host -------------------------------------------------------------------------------


def test_an_operator_computes_and_an_annotation_around_it_does_not(tmp_path: Path) -> None:
    lane = of(
        tmp_path, step(1, 0, 1000), note("Optimizer.step#AdamW.step", 100, 900),
        event("aten::mul", 200, 500), event("aten::empty", 300, 350),
    )  # fmt: skip
    assert found(close([lane]).budget) == {Term.COMPUTE: 300, Term.IDLE: 700}


def test_waiting_in_an_autograd_hook_does_not_count_as_compute(tmp_path: Path) -> None:
    """FSDP waits for its reduce-scatter in a hook, which has no separate range and leaves only a
    gap.
    """
    lane = of(
        tmp_path, step(1, 0, 1000),
        event("autograd::engine::evaluate_function: AddmmBackward0", 0, 800),
        event("AddmmBackward0", 50, 250),
        event("RegisterPostBackwardFunctionBackward", 300, 800),
        note("FSDP::post_backward_reduce (1)", 350, 790),
        event("aten::copy_", 400, 450),
    )  # fmt: skip
    assert found(close([lane]).budget) == {Term.COMPUTE: 250, Term.IDLE: 750}


def test_issuing_a_collective_is_launch_and_its_gloo_thread_is_communication(
    tmp_path: Path,
) -> None:
    lane = of(
        tmp_path, step(1, 0, 1000), event("aten::mm", 0, 300),
        event("c10d::allreduce_", 300, 340),
        note("gloo:all_reduce", 320, 700, tid=9), event("aten::copy_", 330, 600, tid=9),
        event("aten::mm", 400, 500),
    )  # fmt: skip
    assert found(close([lane]).budget) == {
        Term.COMPUTE: 400, Term.TRANSFER: 280, Term.LAUNCH: 20, Term.IDLE: 300,
    }  # fmt: skip


def test_operators_inside_data_loading_count_as_data(tmp_path: Path) -> None:
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    lane = of(
        tmp_path, step(1, 0, 1000), note(name, 100, 400), event("aten::stack", 150, 250),
        event("scaleproof.data.batch", 500, 600), event("aten::mm", 600, 700),
    )  # fmt: skip
    assert found(close([lane]).budget) == {Term.COMPUTE: 100, Term.DATA: 400, Term.IDLE: 500}


def test_a_communication_span_is_subtracted_from_the_operator_around_it(tmp_path: Path) -> None:
    lane = of(
        tmp_path, step(1, 0, 1000), event("SomeBackward", 0, 900),
        event("scaleproof.communication.link", 200, 600),
    )  # fmt: skip
    assert found(close([lane]).budget) == {
        Term.COMPUTE: 500, Term.TRANSFER: 400, Term.IDLE: 100,
    }  # fmt: skip


def test_an_early_recv_is_bubble_until_the_send_begins(tmp_path: Path) -> None:
    """Sends and receives are on the main thread and overlap; their peers are in the operands."""
    stage0 = of(
        tmp_path, step(1, 0, 1000), event("aten::mm", 0, 400),
        event("c10d::send", 400, 410, **{"Concrete Inputs": ["", "", "1", "0"]}),
        note("gloo:send", 400, 500),
        rank=0, world=2,
    )  # fmt: skip
    stage1 = of(
        tmp_path, step(1, 0, 1000),
        event("c10d::recv_", 0, 10, **{"Concrete Inputs": ["", "", "0", "0"]}),
        note("gloo:recv", 0, 500), event("aten::mm", 500, 1000),
        rank=1, world=2,
    )  # fmt: skip
    budget = close([stage0, stage1], {}, 0).budget
    assert found(budget, 1) == {
        Term.COMPUTE: 500, Term.BUBBLE: 390, Term.TRANSFER: 100, Term.LAUNCH: 10,
    }  # fmt: skip
    assert budget.imbalance == pytest.approx(500 / 450)


def test_a_trace_without_steps_is_read_as_one_step_with_a_caveat(tmp_path: Path) -> None:
    budget = close([of(tmp_path, event("aten::mm", 0, 400), event("aten::mm", 600, 700))]).budget
    assert budget.steps == 1 and "no ProfilerStep" in budget.unsure[0]
    assert found(budget) == {Term.COMPUTE: 500, Term.IDLE: 200}


# --- on a device -------------------------------------------------------------------------------


def launched(
    name: str, call: int, start: int, end: int, k: int, **args: Any
) -> list[dict[str, Any]]:
    """Return a kernel and the host's call that launched it."""
    return [
        event("cudaLaunchKernel", call, call + 5, "cuda_runtime", correlation=k),
        event(name, start, end, "kernel", tid=7, pid=0, correlation=k, stream=7, **args),
    ]


def nccl(start: int, end: int, call: int, k: int, seq: int) -> list[dict[str, Any]]:
    return launched(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)", call, start, end, k,
        **{"Collective name": "allreduce", "In msg nelems": 64, "Seq": seq, "Group size": 2,
           "Process Group Name": "0", "Process Group Ranks": "[0, 1]"},
    )  # fmt: skip


def test_device_steps_end_with_their_last_kernel_and_gaps_are_classified(tmp_path: Path) -> None:
    def us(*times: int) -> list[int]:
        return [1000 * t for t in times]

    lane = of(
        tmp_path, step(1, *us(0, 1000)), step(2, *us(1000, 2000)), step(3, *us(2000, 2500)),
        # In the first step; the next step starts at its end.
        *launched("sgemm", *us(100, 200, 1200), 1),
        *launched("sgemm", *us(1400, 1500, 1700), 2),
        *launched("gelu", *us(1450, 1750, 1800), 3),
        event("Memcpy HtoD (Pinned -> Device)", *us(1800, 1850), "gpu_memcpy", 7, 0, correlation=4),
        event("cudaMemcpyAsync", *us(1500, 1505), "cuda_runtime", correlation=4),
        note("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", *us(1210, 1300)),
        *launched("sgemm", *us(2100, 2200, 2400), 5),
    )  # fmt: skip
    assert (lane.edges - BASE_NS).tolist() == us(1200, 1850, 2400)
    budget = close([lane]).budget
    assert budget.device == "cuda" and budget.ranks[0].step_ns == (650_000, 550_000)
    assert found(budget) == {
        Term.COMPUTE: 250_000,  # Two kernels run.
        Term.MOVE: 50_000,
        Term.DATA: 90_000,  # 90 of the 200 us before the launch call are data loading.
        Term.IDLE: 110_000,
        Term.LAUNCH: 10_005,  # The call, and 10 us until the kernel starts.
        Term.OTHER: 50_000 + 89_995,  # gelu was already queued; sgemm waited for something else.
    }


def test_nccl_kernels_are_matched_by_sequence_number_and_divided(tmp_path: Path) -> None:
    """Rank 1's trace has an earlier collective that rank 0's lacks, so sequence numbers count, not
    the order.
    """

    def rank(r: int, late: int, *more: dict[str, Any]) -> Lanes:
        return of(
            tmp_path, step(1, 0, 1000), step(2, 1000, 2000), *more,
            *launched("sgemm", 10, 20, 900, 1),
            *launched("sgemm", 1010, 1020, 1300 + late, 2),
            *nccl(1300 + late, 1800, 1015, 3, seq=12),
            rank=r, world=2,
        )  # fmt: skip

    budget = close([rank(0, 0), rank(1, 200)], {}, 0).budget
    assert found(budget, 0) == {
        Term.COMPUTE: 280, Term.WAIT: 200, Term.TRANSFER: 300, Term.IDLE: 110, Term.LAUNCH: 10,
    }  # fmt: skip
    assert found(budget, 1)[Term.TRANSFER] == 300 and Term.WAIT not in found(budget, 1)
    assert budget.blame is not None and budget.blame.rank == 1
    more = nccl(900, 950, 15, 9, seq=11)
    edge = close([rank(0, 0), rank(1, 200, *more)], {}, 0).budget
    assert found(edge, 0) == found(budget, 0)
    assert "1 collectives are missing" in edge.unsure[0]


@pytest.mark.parametrize(
    "name",
    ["ncclKernel_AllReduce_RING_LL_Sum_float", "ncclDevKernel_ReduceScatter_Sum_bf16",
     "void cross_device_reduce_1stage<float, 2>", "multimem_all_reduce_kernel", "rcclGenericKernel"],
)  # fmt: skip
def test_communication_kernels_of_other_libraries_are_recognized(tmp_path: Path, name: str) -> None:
    lane = of(tmp_path, step(1, 0, 100), step(2, 100, 200), *launched("k", 1, 2, 9, 1),
              *launched(name, 110, 120, 190, 2))  # fmt: skip
    assert len(lane.ops) == 1 and len(lane.compute) == 1
