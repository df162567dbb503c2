"""Describe the machine, its software and settings, and the resources that a rank used."""

from collections.abc import Sequence

from harness.analysis.ladder import ArmRow
from harness.base.documents import fields_of
from harness.base.formatting import rate, si
from harness.host.devices import peaks
from harness.host.environment import is_digest
from harness.host.machine import Machine
from harness.interface.report.tabled import Table
from harness.interface.report.text import Column
from harness.record import LaunchRecord, RunRecord


def question(run: RunRecord) -> str:
    """Return the question that a run answers, as the title of its page."""
    scripts = {arm.case.script for plan in run.plans for arm in plan.arms if arm.case.script}
    what = "training" if len(scripts) != 1 else scripts.pop()
    return f"Does {what} scale on {run.machine.title}?"


def facts(run: RunRecord) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the facts of machine and software as titles, each with its (name, value) rows."""
    software = sorted(run.software.items())
    for name, versions in sorted(run.setups.items()):
        software += [(f"{name}: {key}", version) for key, version in sorted(versions.items())]
    groups = [
        ("Machine", _machine(run.machine)),
        ("The host before the run", [(finding.check, finding.text) for finding in run.admission]),
        ("Software", software),
        ("Settings", sorted((key, _told(value)) for key, value in fields_of(run.settings).items())),
        ("Environment", _environment(run)),
    ]
    groups[1:1] = [("Topology, network, limits and clocks", _shared(run))]
    return [(title, rows) for title, rows in groups if rows]


def _environment(run: RunRecord) -> list[tuple[str, str]]:
    """Return the environment variables that libraries read, and the names of all other variables.

    The record has only digests of the values of the other variables.
    """
    variables = sorted(run.environment.items())
    others = [name for name, value in variables if is_digest(value)]
    rows = [(name, value) for name, value in variables if not is_digest(value)]
    return [*rows, *([("others, stored as digests", ", ".join(others))] if others else [])]


def _shared(run: RunRecord) -> list[tuple[str, str]]:
    """Return the facts of the first node that are not shown elsewhere on the page."""
    of_host = next(iter(run.facts.values()), {})
    elsewhere = ("hardware: ", "version: ", "environment: ")
    return [(name, text) for name, text in of_host.items() if not name.startswith(elsewhere)]


def nodes(run: RunRecord) -> Table[Machine]:
    """Return the table of the machines of a run on several nodes."""
    return Table(
        columns=[
            Column[Machine]("node", 9, lambda m: m.host, left=True),
            Column("cpu", 9, lambda m: m.cpu, left=True),
            Column("cores", 9, lambda m: str(m.num_cores), raw=lambda m: m.num_cores),
            Column("memory", 9, lambda m: f"{m.memory_gib} GiB", raw=lambda m: m.memory_gib),
            Column("gpus", 9, lambda m: f"{m.num_gpus}x {m.gpu}" if m.gpu else "none", left=True),
            Column("driver", 9, lambda m: m.driver or "", left=True),
            Column("kernel", 9, lambda m: m.kernel, left=True),
        ],
        rows=run.nodes,
    )


def _machine(m: Machine) -> list[tuple[str, str]]:
    peak = ", ".join(f"{flops / 1e12:g} TFLOP/s {dtype}" for dtype, flops in peaks(m.gpu).items())
    gpu = f"{m.num_gpus}x {m.gpu}, {m.gpu_memory_gib} GiB, driver {m.driver}" if m.gpu else "none"
    return [
        ("cpu", f"{m.num_cores} cores of {m.cpu}, {m.memory_gib} GiB"),
        ("gpu", gpu),
        ("peak of one device", peak or "unknown: no MFU"),
        ("hardware class", m.hardware_class),
        ("host", f"{m.host}, kernel {m.kernel}"),
    ]


def work(row: ArmRow) -> str:
    """Return text like ``12,300 tokens/s, 41.2 TFLOP/s (MFU 0.42), 0.31 J a sample``.

    Unknown values are left out.
    """
    known = (
        ("{} tokens/s", None if row.tokens_per_s is None else rate(row.tokens_per_s)),
        ("{}FLOP/s a rank", None if row.flops is None else si(row.flops)),
        ("MFU {:.2f}", row.mfu),
        ("{:.2f} by roofline", row.roofline_mfu if row.mfu is not None else None),
        ("{:.3g} J a sample", row.energy_j),
    )
    return ", ".join(form.format(value) for form, value in known if value is not None) or "n/a"


def busy(launches: Sequence[LaunchRecord]) -> str:
    """Return how busy host and devices were: CPU cores per rank, device load, clocks, allocator.

    These values are information only. No verdict depends on them.
    """
    ranks = [rank for launch in launches for rank in launch.ranks if rank.window_s]
    if not ranks:
        return "n/a"
    words = [f"{sum(rank.cpu_s / rank.window_s for rank in ranks) / len(ranks):.2f} CPU"]
    used = [
        u
        for launch in launches
        for window in launch.gpus
        if window.utilization_pct
        for u in window.utilization_pct
    ]
    if used:
        words.append(f"device {min(used)} to {max(used)}%")
    clocks = [c for launch in launches for window in launch.gpus for c in window.sm_clock_mhz or ()]
    watts = [w for launch in launches for window in launch.gpus for w in window.power_w or ()]
    words += [f"{min(clocks)} to {max(clocks)} MHz"] if clocks else []
    words += [f"{min(watts):.0f} to {max(watts):.0f} W"] if watts else []
    if kept := [rank.allocator for rank in ranks if rank.allocator]:
        reserved_bytes = max(
            allocator.reserved_bytes - allocator.allocated_bytes for allocator in kept
        )
        retries = sum(allocator.num_retries for allocator in kept)
        words.append(
            f"{si(float(reserved_bytes), 'B')} reserved but free, {retries} allocation retries"
        )
    return ", ".join(words)


def _told(setting: object) -> str:
    if isinstance(setting, tuple):
        return " ".join(map(str, setting))
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return "not set" if setting in (None, "") else str(setting)
