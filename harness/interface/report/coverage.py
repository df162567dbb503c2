"""The coverage statement: what was exercised out of what, what was skipped, cut or met nothing."""

from collections.abc import Collection, Iterable

from harness.analysis.judging import notices
from harness.analysis.reached import reached
from harness.cases import CaseSpec, Reach, Role
from harness.interface.report.text import wrap
from harness.record import Purpose, RunRecord, Status


def coverage(run: RunRecord, width: int = 100) -> list[str]:
    """Lines for the end of a run; nothing that was not measured is passed over."""
    asked = {a.case.hash: a.case for p in run.plans for a in p.arms}
    if not asked:
        return []
    timed = {x.case for x in run.launches if x.purpose is Purpose.TIMED and x.usable}
    cases = [c for h, c in asked.items() if h in timed]
    profiled = {x.case for x in run.launches if x.purpose is Purpose.PROFILE and x.budget}
    controls = sum(a.role is Role.CONTROL for p in run.plans for a in p.arms)
    apart = f" ({controls} controls are only checked)" if controls else ""
    lines = [
        f" covered    timed {len(cases)} of {len(asked)} cases{apart}, profiled {len(profiled)}"
    ]
    lines += wrap(f" worlds     {_worlds(run, cases)}", width, 12)
    for kind, text in _names(run, cases):
        lines += wrap(f" {kind:<10} {text}", width, 12)
    lines += wrap(f" losses     {notices.reproducible(run)}", width, 12)
    for reason in dict.fromkeys(v.detail for v in run.verdicts if v.status is Status.SKIP):
        lines += wrap(f" skipped    {reason}", width, 12)
    cut = [p.name for p in run.plans if p.hash in run.out_of_time]
    if cut:
        lines += wrap(f" cut        by the time budget: {', '.join(cut)}", width, 12)
    return [*lines, *unmet(run, width)]


def _worlds(run: RunRecord, cases: Collection[CaseSpec]) -> str:
    """World sizes out of 1 to the largest, ranks and modes; stand-ins apart."""
    parts = []
    real = {c.world_size for c in cases if not run.stand_ins(c)}
    stand_in = {c.world_size for c in cases if run.stand_ins(c)}
    for label, worlds in (("", real), ("stand-ins ", stand_in)):
        if worlds:
            skipped = [str(n) for n in range(1, max(worlds)) if n not in worlds]
            gap = f" (not {', '.join(skipped)})" if 0 < len(skipped) <= 8 else ""
            gap = gap or (f" (not {len(skipped)} sizes in between)" if skipped else "")
            ranks = f"ranks 0..{max(worlds) - 1}" if max(worlds) > 1 else "rank 0"
            parts.append(f"{label}{_list(map(str, sorted(worlds)))}{gap}, {ranks}")
    shapes = sorted({"x".join(map(str, c.nodes)) for c in cases if len(c.nodes) > 1})
    parts.append(f"ranks per node {_list(shapes)}" if shapes else "one node")
    parts.append(f"modes {_list(sorted({str(c.mode) for c in cases}))}")
    parts.append(f"precisions {_list(sorted({str(c.precision) for c in cases}))}")
    return "; ".join(parts)


def _names(run: RunRecord, cases: Collection[CaseSpec]) -> list[tuple[str, str]]:
    """Strategies, models and compressors out of those that the program offers."""
    used = {
        "strategies": {c.strategy for c in cases},
        "models": {c.model for c in cases},
        "compressors": {c.compressor for c in cases if c.compressor},
    }
    rows = []
    for kind, offered in run.offered.items():
        names = used.get(kind, set())
        unnamed = [n for n in offered if n not in names]
        without = f" (not {', '.join(unnamed)})" if unnamed else ""
        word = {"strategies": "strategy", "models": "model", "compressors": "compressor"}[kind]
        named = f"{_list(sorted(names))}: " if names else ""  # "none" is a compressor, too
        rows.append((word, f"{named}{len(names)} of {len(offered)}{without}"))
    return rows


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def unmet(run: RunRecord, width: int = 100) -> list[str]:
    """Rules that met nothing: because they could not here, or because they match no case."""
    if not any(p.arms for p in run.plans):
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
