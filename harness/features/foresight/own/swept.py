"""Determine link rates from the bandwidth sweep of a run, or else from data sheets."""

from collections.abc import Sequence
from dataclasses import replace

from harness.cases import Device
from harness.features.foresight.own.stated import OPERATIONS
from harness.features.foresight.physics.collectives import CollectiveKind, Fabric, nccl
from harness.features.foresight.priors import Belief
from harness.features.foresight.published.reading import fabric_of
from harness.features.foresight.terms import Unknown
from harness.record import RunRecord
from harness.record.fabric import LATENCY_BYTES, Row

#: A sweep shows the rate of a link with payloads of at least this many bytes.
LARGE_BYTES = 1 << 20
#: Belief about the rate that training reaches relative to the bandwidth sweep.
SWEPT = Belief(1.0, 0.15)
#: Belief about latency relative to the sweep. Its spread is large, because the shortest messages of
#: one collective predict the latency of other messages only roughly.
SWEPT_LATENCY = Belief(1.0, 0.5)

Links = tuple[Fabric, float | None, dict[Unknown, Belief], list[str]]


def links(run: RunRecord) -> Links:
    """Return the fabric, the peak FLOP/s of a GPU, beliefs about unknowns, and notes.

    Rates and latency inside and between nodes come from the bandwidth sweep of the run. Data sheets
    are used if the sweep lacks them.
    """
    gpu = run.machine.gpu if run.settings.device is Device.CUDA else ""
    fabric, peak, remarks = fabric_of({"gpu": gpu or "", "gpus_per_node": max(run.settings.nodes)})
    beliefs = dict[Unknown, Belief]()
    notes = list(remarks)
    if fabric.per_node == 1:  # no traffic uses links inside a node
        notes = [note for note in notes if "intra-node" not in note]
    swept = {False: list[float](), True: list[float]()}
    for row in filter(_reduces, run.fabric):
        if row.payload_bytes >= LARGE_BYTES and row.bus_bps:
            swept[len(row.nodes) > 1].append(row.bus_bps)
    near, far = (max(swept[between], default=None) for between in (False, True))
    fabric = replace(
        fabric,
        intra_bytes_per_s=near or fabric.intra_bytes_per_s,
        inter_bytes_per_s=far or fabric.inter_bytes_per_s,
    )
    for rate, unknown, where in (
        (near, Unknown.LINK, "intra-node"),
        (far, Unknown.NETWORK, "inter-node"),
    ):
        if rate:
            beliefs[unknown] = SWEPT
            notes = [note for note in notes if where not in note]
    latency, transfer = _by_kind(run.fabric, fabric)
    if latency:
        fabric = replace(fabric, latency_times=latency, transfer_times=transfer)
        beliefs[Unknown.LATENCY] = SWEPT_LATENCY
    return fabric, peak, beliefs, notes


def _by_kind(
    swept: Sequence[Row], fabric: Fabric
) -> tuple[dict[CollectiveKind, float], dict[CollectiveKind, float]]:
    """Return measured time / time in NCCL's model, for the shortest and the largest messages.

    The factors are measured in the largest world of the sweep. Each kind of collective has its own
    factor, because a library may be less efficient with one kind than with another.
    """
    latency, transfer = dict[CollectiveKind, float](), dict[CollectiveKind, float]()
    for operation, (kind, _) in OPERATIONS.items():
        rows = [row for row in swept if row.operation == operation and row.right and row.time_s]
        if not rows:
            continue
        nodes = max((row.nodes for row in rows), key=lambda n: (len(n), sum(n)))
        by_size = {row.payload_bytes: row.time_s or 0.0 for row in rows if row.nodes == nodes}
        small = min(by_size)
        large = max(by_size)
        if small > LATENCY_BYTES or large < LARGE_BYTES:
            continue
        first, last = (nccl(kind, size, sum(nodes), max(nodes), fabric) for size in (small, large))
        latency[kind] = by_size[small] / first.total_s
        rest_s = by_size[large] - last.latency_s * latency[kind]
        transfer[kind] = max(1.0, rest_s / last.transfer_s)
    return latency, transfer


def _reduces(row: Row) -> bool:
    return row.operation == "all_reduce" and row.right
