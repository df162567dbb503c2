"""Traces that other tools and devices record, and the defects that they had."""

from __future__ import annotations

import gzip
import itertools
import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.timeline.close import close, match
from harness.analysis.timeline.lanes import ALONE, Lanes
from harness.analysis.timeline.reader import BLOCK_BYTES, Blocks, read
from harness.analysis.timeline.sorting import sorted_lanes
from harness.analysis.timeline.tallies import operators, ranges
from harness.base.errors import ScaleproofError
from harness.interface.cli.main import main
from harness.record import Term
from tests.analysis.timeline.writing import BASE_NS, event, step, write


def of(folder: Path, *events: dict[str, Any], rank: int = 0, world: int = 1) -> Lanes:
    return sorted_lanes(
        read(write(folder / f"rank{rank}.json", events, rank=rank, world_size=world))
    )


def kernel(name: str, call: int, start: int, end: int, k: int, **args: Any) -> list[dict[str, Any]]:
    """Return a kernel and the host's call that launched it; times in us."""
    return [
        event("cudaLaunchKernel", 1000 * call, 1000 * call + 5, "cuda_runtime", correlation=k),
        event(name, 1000 * start, 1000 * end, "kernel", 7, 0, correlation=k, stream=7, **args),
    ]


def steps(*edges: int) -> list[dict[str, Any]]:
    """Return steps between these edges; times in us."""
    return [step(k, 1000 * a, 1000 * b) for k, (a, b) in enumerate(itertools.pairwise(edges))]


def terms(lane: Lanes) -> dict[str, int]:
    """Return the time of each term in us, over all steps."""
    (rank,) = close([lane]).budget.ranks
    return {term: sum(ns) // 1000 for term, ns in rank.terms.items() if sum(ns)}


def test_a_stream_may_have_the_largest_32_bit_number(tmp_path: Path) -> None:
    """With enable_cuda_sync_events, kineto writes stream 4294967295 if an event has no stream."""
    sync = event("Context Sync", 50_000, 60_000, "cuda_sync", 7, 0, stream=(1 << 32) - 1)
    lane = of(
        tmp_path,
        *steps(0, 50, 100),
        *kernel("gemm", 5, 10, 40, 1),
        *kernel("gemm", 55, 60, 90, 2),
        sync,
    )
    assert terms(lane)[Term.COMPUTE] == 30


def test_steps_that_launch_nothing_are_left_out(tmp_path: Path) -> None:
    """The profiler drops trailing steps without kernels; this reader does so, too, and reports it."""
    lane = of(
        tmp_path,
        *steps(0, 50, 100, 150, 200),
        *kernel("gemm", 5, 10, 40, 1),
        *kernel("gemm", 55, 60, 90, 2),
    )
    assert (lane.edges - BASE_NS).tolist() == [40_000, 90_000]
    assert "2 steps launched nothing on the device and are ignored" in lane.unsure
    assert close([lane]).budget.comm_share == 0.0


def test_a_trace_of_steps_without_a_length_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScaleproofError, match="no step in this trace has a length"):
        of(tmp_path, step(0, 10, 10), event("aten::mm", 10, 10))


def test_a_trace_without_named_ranges_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "rank0.json", kernel("gemm", 5, 10, 40, 1))
    assert main(["report", "timeline", str(path), "--ranges"]) == 0
    assert "no named ranges in these traces" in capsys.readouterr().out


def test_event_categories_of_2021_are_recognized(tmp_path: Path) -> None:
    """Without this, such a trace would show an idle host and no device."""
    old = {"kernel": "Kernel", "cuda_runtime": "Runtime", "user_annotation": "Operator"}
    events = [*steps(0, 50, 100), *kernel("gemm", 5, 10, 40, 1), *kernel("gemm", 55, 60, 90, 2)]
    new = of(tmp_path, *events)
    lane = of(tmp_path, *({**e, "cat": old[e["cat"]]} for e in events))
    assert lane.device == "cuda" and terms(lane) == terms(new)


@pytest.mark.parametrize("kind", ["mtia_ccp_events", "hpu_op"])
def test_unsupported_devices_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(ScaleproofError, match=f"device events of kind '{kind}'"):
        of(tmp_path, *steps(0, 50), event("matmul", 0, 10, kind))


def test_an_unknown_category_of_host_events_is_reported(tmp_path: Path) -> None:
    lane = of(tmp_path, *steps(0, 50), event("aten::mm", 0, 10_000), event("x", 0, 10, "my_tool"))
    assert "events of kind 'my_tool' are left out" in lane.unsure


@pytest.mark.parametrize(
    ("name", "talks"),
    [
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16>", True),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", True),
        ("void sglang::cross_device_reduce_2stage<half>", True),
        ("void c10d::symmetric_memory::one_shot_all_reduce_kernel<float>", True),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot<a>", True),
        ("void deep_ep::internode::dispatch<false>", True),
        ("nvshmemi_transfer_rma_p", True),
        ("ncclSymDevKernel_AllReduce", True),
        ("mscclKernel_Sum_half", True),
        ("void at::native::reduce_kernel<512, 1>", False),
        ("void at::native::vectorized_elementwise_kernel<4>", False),
        ("triton_red_fused_sum_0", False),
        ("void cutlass::dispatch<Kernel>", False),
    ],
)
def test_communication_kernels_are_recognized_in_any_namespace(
    tmp_path: Path, name: str, talks: bool
) -> None:
    lane = of(
        tmp_path, *steps(0, 50, 100), *kernel("gemm", 5, 10, 40, 1), *kernel(name, 55, 60, 90, 2)
    )
    assert bool(lane.ops) is talks


def test_gloo_in_the_trace_of_a_device_is_communication(tmp_path: Path) -> None:
    lane = of(
        tmp_path, *steps(0, 50, 150), *kernel("gemm", 5, 10, 40, 1), *kernel("gemm", 55, 60, 140, 2),
        event("gloo:all_reduce", 41_000, 56_000, "user_annotation", 9),
    )  # fmt: skip
    assert [op.kind for op in lane.ops] == ["all_reduce"]
    assert terms(lane)[Term.UNDIVIDED if match([lane]).refused else Term.TRANSFER] == 15


def test_a_queued_kernel_does_not_count_as_launching(tmp_path: Path) -> None:
    """In this decode step, a kernel is launched at 55 us and starts at 900 us behind other work."""
    lane = of(
        tmp_path,
        *steps(0, 50, 1000),
        *kernel("gemm", 5, 10, 40, 1),
        *kernel("gemm", 55, 900, 950, 2),
    )
    assert terms(lane) == {Term.COMPUTE: 50, Term.IDLE: 15, Term.LAUNCH: 10, Term.OTHER: 834}


def test_a_long_launch_call_counts_as_launching_until_it_returns(tmp_path: Path) -> None:
    """The first call of a kernel loads its module, so the call takes 300 us."""
    slow = event("cudaLaunchKernel", 55_000, 355_000, "cuda_runtime", correlation=2)
    run = event("gemm", 360_000, 400_000, "kernel", 7, 0, correlation=2, stream=7)
    lane = of(tmp_path, *steps(0, 50, 500), *kernel("gemm", 5, 10, 40, 1), slow, run)
    assert terms(lane) == {Term.COMPUTE: 40, Term.IDLE: 15, Term.LAUNCH: 305}


def test_a_single_step_ends_with_its_device_work(tmp_path: Path) -> None:
    lane = of(
        tmp_path, *steps(0, 150), *kernel("gemm", 5, 10, 40, 1), *kernel("gemm", 100, 110, 250, 2)
    )
    assert (lane.edges - BASE_NS).tolist() == [0, 250_000]
    assert any("a single step" in remark for remark in lane.unsure)
    assert terms(lane)[Term.COMPUTE] == 170


def collective(call: int, start: int, end: int, k: int, seq: int) -> list[dict[str, Any]]:
    return kernel(
        "ncclDevKernel_AllReduce", call, start, end, k,
        **{"Collective name": "allreduce", "In msg nelems": 64, "Seq": seq, "Group size": 2,
           "Process Group Name": "tp", "Process Group Ranks": "[0, 1]"},
    )  # fmt: skip


def test_a_later_start_of_a_capture_does_not_count_as_waiting(tmp_path: Path) -> None:
    """One step of each rank was captured, rank 1's 40 us later, so rank 0 waited 40 us less than it
    seems.
    """
    first = of(
        tmp_path,
        *steps(0, 200),
        *kernel("gemm", 1, 2, 10, 1),
        *collective(11, 12, 100, 2, 1),
        world=2,
    )
    late = of(
        tmp_path, *steps(40, 240), *kernel("gemm", 41, 42, 88, 1), *collective(89, 90, 100, 2, 1),
        rank=1, world=2,
    )  # fmt: skip
    blame = close([first, late]).budget.blame
    assert blame is not None and blame.rank == 1
    assert blame.waited_ns // 1000 == 38, "90 - 12, minus the 40 us between the captures"


@pytest.mark.parametrize("gap", ["", "\n"])
def test_lists_after_the_events_do_not_remove_events(tmp_path: Path, gap: str) -> None:
    events = [*steps(0, 50), event("aten::mm", 0, 30_000)]
    devices = [{"id": 0, "name": "NVIDIA H100"}, {"id": 1, "name": "NVIDIA H100"}]
    info = {"rank": 3, "world_size": 8}
    text = (
        f'{{"traceEvents": {json.dumps(events)},{gap}"deviceProperties": {json.dumps(devices)},'
        f'"distributedInfo": {json.dumps(info)}}}'
    )
    path = tmp_path / "a.json"
    path.write_text(text)
    trace = read(path)
    assert (trace.rank, trace.world_size, len(trace.start), trace.partial) == (3, 8, 2, "")


def test_fields_after_the_events_of_a_long_trace_are_read(tmp_path: Path) -> None:
    many = [event("aten::mm", 1000 * i, 1000 * i + 500) for i in range(3 * BLOCK_BYTES // 90)]
    devices = [{"id": i, "name": "NVIDIA H100"} for i in range(8)]
    tail = f'"deviceProperties": {json.dumps(devices)}, "distributedInfo": {{"rank": 3}}'
    path = tmp_path / "a.json"
    path.write_text(f'{{"traceEvents": {json.dumps(many)}, {tail}}}')
    trace = read(path)
    assert (trace.rank, len(trace.start), trace.partial) == (3, len(many), "")


def test_a_trace_without_a_rank_gets_it_from_its_file_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell lists rank10 before rank2, so the order of files is not the order of ranks."""
    paths = []
    for rank in (10, 2, 0):
        path = tmp_path / f"trace_rank{rank}.json"
        paths.append(write(path, [*steps(0, 50), event("aten::mm", 0, 1000 * (rank + 1))]))
    assert main(["report", "timeline", *map(str, paths)]) == 0
    screen = capsys.readouterr().out
    assert "rank 10: its rank is from its file's name" in " ".join(screen.split())


def test_steps_of_the_thread_with_the_longer_ones_count(tmp_path: Path) -> None:
    """Steps of both threads in one list would last 0, 50 and 0 us."""
    other = [step(k, 1000 * a, 1000 * a + 100, tid=5) for k, a in ((1, 0), (2, 50))]
    lane = of(tmp_path, *steps(0, 50, 100), *other, event("aten::mm", 0, 30_000))
    assert (lane.edges - BASE_NS).tolist() == [0, 50_000, 100_000]
    assert "1 other threads also run steps, which are ignored" in lane.unsure


def test_times_may_be_negative(tmp_path: Path) -> None:
    """ROCm counts from the middle of a capture: -1 us is a valid time, not a missing launch."""
    shifted = [
        {**e, "ts": e["ts"] - 41.001}
        for e in (*steps(0, 41, 100), *kernel("gemm", 5, 10, 40, 1), *kernel("gemm", 41, 60, 90, 2))
    ]
    assert terms(of(tmp_path, *shifted))[Term.LAUNCH] == 10


def test_a_whole_group_of_a_larger_world_is_divided(tmp_path: Path) -> None:
    """With tensor parallelism, only ranks 0 and 1 of 4 take part in these collectives."""
    ranks = [
        of(tmp_path, *steps(0, 50, 200), *kernel("gemm", 5, 10, 40, 1),
           *collective(51, 60 + late, 100, 2, 1), rank=rank, world=4)
        for rank, late in ((0, 0), (1, 30))
    ]  # fmt: skip
    assert not match(ranks).refused
    assert close(ranks).budget.ranks[0].mean_ns(Term.WAIT) // 1000 == 30
    partly = [replace(ranks[0], ops=tuple(replace(op, size=4) for op in ranks[0].ops)), ranks[1]]
    assert "only 2 of 4" in match(partly).refused


def test_operators_of_other_threads_do_not_count_as_compute(tmp_path: Path) -> None:
    """A thread that pins memory copies during the step; counted as compute, it would hide
    communication.
    """
    lane = of(
        tmp_path, *steps(0, 100), event("aten::mm", 0, 40_000),
        event("aten::copy_", 30_000, 90_000, tid=11),
        event("autograd::engine::evaluate_function: MulBackward0", 40_000, 60_000, tid=12),
        event("aten::mul", 41_000, 51_000, tid=12),
    )  # fmt: skip
    assert terms(lane) == {Term.COMPUTE: 50, Term.IDLE: 50}
    assert "1 threads outside the step also run operators, which are ignored" in lane.unsure


def test_timestamps_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    """Microseconds since 1970 as floats have a resolution of 0.25 us; the conversion to ns must not
    round them to 256 ns.
    """
    day = 1_700_000_000_000_000
    events = [
        {**event("ProfilerStep#1", 0, 100_000, "user_annotation"), "ts": day},
        {**event("aten::mm", 0, 1_234), "ts": day + 7},
    ]
    trace = read(write(tmp_path / "a.json", events))
    assert (trace.end - trace.start).tolist() == [100_000, 1_234]
    assert int(trace.start[1] - trace.start[0]) == 7_000 and trace.notes == ()
    events[1]["ts"] = day + 7.5
    (tables,) = read(write(tmp_path / "b.json", events)).notes
    assert tables == "its timestamps have a resolution of 250 ns"


def test_a_compressed_trace_is_never_held_whole(tmp_path: Path) -> None:
    """128 KiB of compressed zeros are 130 MB, so the size of a block must not depend on the
    compressed size.
    """
    line = json.dumps(event("aten::mm", 0, 500, detail="0" * 20_000)).encode()
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + b",\n".join([line] * 3000) + b"]}"))
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    total = sum(map(len, Blocks(path)))
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total > 50 * BLOCK_BYTES and most < 8 * BLOCK_BYTES


def test_sends_that_name_no_peer_are_not_divided(tmp_path: Path) -> None:
    """Coalesced sends of a pipeline with equal counts on two stages would look like a collective."""
    name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    ranks = [
        of(tmp_path, *steps(0, 50, 200), *kernel("gemm", 5, 10, 40, 1), *kernel(name, 51, 60, 90, 2),
           rank=rank, world=2)
        for rank in (0, 1)
    ]  # fmt: skip
    assert {op.group for lane in ranks for op in lane.ops} == {ALONE}
    assert not match(ranks).meetings
    assert any("name no peer" in remark for remark in ranks[0].unsure)


def test_operators_are_counted_only_within_the_steps(tmp_path: Path) -> None:
    """Totals of 3 steps divided by 2 would be 1.5 times those of a step."""
    events = [*steps(0, 50, 100, 150)]
    for k in range(3):
        events += kernel("gemm", 50 * k + 5, 50 * k + 10, 50 * k + 40, k + 1)
    trace = read(write(tmp_path / "a.json", events))
    lane = sorted_lanes(trace)
    (gemm,) = operators([trace], [lane], len(lane.edges) - 1)
    assert (gemm.self_ns, gemm.count) == (30_000, 1)


def test_a_range_on_the_device_is_not_counted_twice(tmp_path: Path) -> None:
    events = [
        *steps(0, 50), event("forward", 0, 10_000, "user_annotation"),
        event("forward", 5_000, 20_000, "gpu_user_annotation", 7, 0),
        event("graph", 5_000, 20_000, "gpu_user_annotation", 7, 0),
    ]  # fmt: skip
    counts = {r.name: r.count for r in ranges([read(write(tmp_path / "a.json", events))])}
    assert counts == {"ProfilerStep": 1, "forward": 1, "graph": 1}


def test_memory_of_the_device_takes_precedence_over_the_host(tmp_path: Path) -> None:
    memory = [
        {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": ts, "pid": 1, "tid": 1,
         "args": {"Total Allocated": size, "Device Type": kind}}
        for ts, size, kind in ((1.0, 500, 0), (2.0, 70_000, 1), (3.0, 600, 0), (4.0, 80_000, 1))
    ]  # fmt: skip
    events = [*steps(0, 50), event("aten::mm", 0, 10_000)]
    trace = read(write(tmp_path / "a.json", [*events, *memory]))
    assert trace.allocated[:, 1].tolist() == [70_000, 80_000]
    host = [m for m in memory if m["args"]["Device Type"] == 0]  # type: ignore[index]
    assert read(write(tmp_path / "b.json", [*events, *host])).allocated[:, 1].tolist() == [500, 600]


@pytest.mark.parametrize(
    "mapping",
    [
        {"distributedInfo": "x"},
        {"distributedInfo": {"rank": float("inf"), "world_size": "NaN"}},
        {"baseTimeNanoseconds": "yesterday"},
    ],
)
def test_invalid_header_fields_are_ignored(tmp_path: Path, mapping: dict[str, Any]) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({**mapping, "traceEvents": [*steps(0, 50), event("mm", 0, 10_000)]}))
    trace = read(path)
    assert (trace.rank, trace.world_size) == (-1, -1) and len(trace.start) == 2


@pytest.mark.parametrize("field", ["ts", "dur"])
@pytest.mark.parametrize("value", [2.0**63, 1e300, -5.0])
def test_events_with_impossible_times_are_counted(tmp_path: Path, field: str, value: float) -> None:
    wrong = {**event("mm", 0, 10_000), field: value}
    tables = read(write(tmp_path / "a.json", [*steps(0, 50, 100), event("mm", 0, 5_000), wrong]))
    if (field, value) == ("ts", -5.0):
        assert tables.partial == "", "the clock of a trace may have any origin"
    else:
        assert tables.partial == "1 events have impossible times" and len(tables.start) == 3


def test_a_missing_step_between_others_is_reported(tmp_path: Path) -> None:
    """Otherwise the step before it would seem to take twice as long."""
    whole = [*steps(0, 50, 100, 150, 200), event("mm", 0, 5_000)]
    gap = [e for e in whole if e["name"] != "ProfilerStep#2"]
    assert of(tmp_path, *whole).unsure == ()
    assert (
        "1 steps are missing: their time counts as part of the steps before them"
        in of(tmp_path, *gap).unsure
    )
