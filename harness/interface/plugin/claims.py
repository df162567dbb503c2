"""Published claims that a session does not test, and why: left out is not passed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from harness.cases import BoundSource, Device, Site, Threshold

#: What a recovery is judged by: no plan, but a course.
RECOVERY = ("recovery_s", "lost_work")


def untested(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> Iterator[tuple[Threshold, str]]:
    """Claims among the rules whose names are not ``judged``, and why each is not.

    ``recovers``: whether recoveries are measured, which every rule of theirs judges.
    """
    for rule in rules:
        if rule.source is not BoundSource.PUBLISHED or rule.name in judged:
            continue
        if rule.metric in RECOVERY and recovers:
            continue
        yield rule, why(rule, site)


def why(rule: Threshold, site: Site) -> str:
    """Says what a rule needs that this run has not."""
    if rule.device not in (None, site.device):
        return "needs GPUs" if rule.device is Device.CUDA else "is about CPU ranks"
    if rule.nodes and len(site.nodes) < min(rule.nodes):
        return f"needs {min(rule.nodes)} nodes, here {_count(len(site.nodes), 'node')}"
    if rule.world and site.world_size < min(rule.world):
        return f"needs {min(rule.world)} ranks, here {_count(site.world_size, 'rank')}"
    if rule.metric in RECOVERY:
        return "no recovery was selected (suites/test_recovery.py)"
    return f"nothing that was selected measures {rule.metric} of {rule.case}"


def _count(number: int, word: str) -> str:
    return f"is one {word}" if number == 1 else f"are {number}"


def lines(
    rules: Sequence[Threshold], judged: Collection[str], site: Site, *, recovers: bool
) -> list[str]:
    """One line a claim, claims with the same reason together."""
    by_reason: dict[str, list[str]] = {}
    for rule, reason in untested(rules, judged, site, recovers=recovers):
        by_reason.setdefault(reason, []).append(f"{rule.name} ({rule.bound})")
    if not by_reason:
        return []
    total = sum(map(len, by_reason.values()))
    shown = [f"scaling: {total} published claims are not tested here:"]
    for reason, names in by_reason.items():
        shown.append(f"  {reason}:")
        shown += [f"    {name}" for name in names]
    return shown
