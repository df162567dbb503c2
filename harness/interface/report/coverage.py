"""The coverage statement: what was exercised out of what, what was skipped, cut or met nothing."""

from collections.abc import Collection, Iterable

from harness.analysis.judging import notices
from harness.analysis.reached import reached
from harness.cases import CaseSpec, Reach, Role
from harness.interface.report.text import wrap
from harness.record import Purpose, RunRecord, Status


def coverage(run: RunRecord, width: int = 100) -> list[str]:
    """Lines for the end of a run; nothing that was not measured is passed over."""
    asked = {arm.case.hash: arm.case for plan in run.plans for arm in plan.arms}
    if not asked:
        return []
    timed = {
        launch.case for launch in run.launches if launch.purpose is Purpose.TIMED and launch.usable
    }
    cases = [case for digest, case in asked.items() if digest in timed]
    profiled = {
        launch.case
        for launch in run.launches
        if launch.purpose is Purpose.PROFILE and launch.budget
    }
    controls = sum(arm.role is Role.CONTROL for plan in run.plans for arm in plan.arms)
    apart = f" ({controls} controls are only checked)" if controls else ""
    lines = [
        f" covered    timed {len(cases)} of {len(asked)} cases{apart}, profiled {len(profiled)}"
    ]
    lines += wrap(f" worlds     {_worlds(run, cases)}", width, 12)
    of_catalogue = not all(case.script for case in asked.values())
    for kind, text in _names(run, cases) if of_catalogue else ():
        lines += wrap(f" {kind:<10} {text}", width, 12)
    lines += wrap(f" losses     {notices.reproducible(run)}", width, 12)
    for reason in dict.fromkeys(
        verdict.detail for verdict in run.verdicts if verdict.status is Status.SKIP
    ):
        lines += wrap(f" skipped    {reason}", width, 12)
    cut = [plan.name for plan in run.plans if plan.hash in run.out_of_time]
    if cut:
        lines += wrap(f" cut        by the time budget: {', '.join(cut)}", width, 12)
    return [*lines, *unmet(run, width)]


def _worlds(run: RunRecord, cases: Collection[CaseSpec]) -> str:
    """World sizes out of 1 to the largest, ranks and modes; stand-ins apart."""
    parts = []
    real = {case.world_size for case in cases if not run.stand_ins(case)}
    stand_in = {case.world_size for case in cases if run.stand_ins(case)}
    for label, worlds in (("", real), ("stand-ins ", stand_in)):
        if worlds:
            skipped = [str(n) for n in range(1, max(worlds)) if n not in worlds]
            gap = f" (not {', '.join(skipped)})" if 0 < len(skipped) <= 8 else ""
            gap = gap or (f" (not {len(skipped)} sizes in between)" if skipped else "")
            ranks = f"ranks 0..{max(worlds) - 1}" if max(worlds) > 1 else "rank 0"
            parts.append(f"{label}{_list(map(str, sorted(worlds)))}{gap}, {ranks}")
    shapes = sorted({"x".join(map(str, case.nodes)) for case in cases if len(case.nodes) > 1})
    parts.append(f"ranks per node {_list(shapes)}" if shapes else "one node")
    parts.append(f"modes {_list(sorted({str(case.mode) for case in cases}))}")
    parts.append(f"precisions {_list(sorted({str(case.precision) for case in cases}))}")
    return "; ".join(parts)


def _names(run: RunRecord, cases: Collection[CaseSpec]) -> list[tuple[str, str]]:
    """Strategies, models and compressors out of those that the program offers."""
    used = {
        "strategies": {case.strategy for case in cases},
        "models": {case.model for case in cases},
        "compressors": {case.compressor for case in cases if case.compressor},
    }
    rows = []
    for kind, offered in run.offered.items():
        names = used.get(kind, set())
        unnamed = [name for name in offered if name not in names]
        without = f" (not {', '.join(unnamed)})" if unnamed else ""
        word = {"strategies": "strategy", "models": "model", "compressors": "compressor"}[kind]
        named = f"{_list(sorted(names))}: " if names else ""  # "none" is a compressor, too
        rows.append((word, f"{named}{len(names)} of {len(offered)}{without}"))
    return rows


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def unmet(run: RunRecord, width: int = 100) -> list[str]:
    """Rules that met nothing: because they could not here, or because they match no case."""
    if not any(plan.arms for plan in run.plans):
        return []
    beyond: dict[str, list[str]] = {}
    unused = []
    for rule, met, why in reached(run):
        if met is Reach.OUT_OF_REACH:
            beyond.setdefault(why, []).append(rule.name)
        elif met is Reach.UNMATCHED:
            unused.append(rule.name)
    lines: list[str] = []
    number = sum(map(len, beyond.values()))
    if unused:
        names = ", ".join(unused)
        match = "rules match" if len(unused) > 1 else "rule matches"
        lines += wrap(f" unused     {len(unused)} {match} no case: {names}", width, 12)
    if beyond:
        why = "; ".join(f"{reason} ({len(names)})" for reason, names in beyond.items())
        lines += wrap(f" untested   {number} rules are not tested here: {why}", width, 12)
    return lines
