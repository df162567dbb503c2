"""Measured launches in pytest-benchmark's table and files, through its public interface.

pytest-benchmark times a function with a clock of our own, which the function moves on by the next
measured value: exact statistics, its JSON, its compare. Verdicts never read it back.
"""

from collections.abc import Sequence

import pytest

from harness.record import LaunchRecord, Purpose, Verdict

_SHOWN = pytest.StashKey[set[tuple[str, str]]]()
_NOW = 0.0


def launch_clock() -> float:
    """The virtual clock. A function of this module, so that its name in the JSON is stable."""
    return _NOW


def wanted(config: pytest.Config) -> bool:
    """Whether the user asked for it, or for one of pytest-benchmark's files."""
    files = ("json", "save", "autosave", "compare")
    asked = any(getattr(config.option, f"benchmark_{name}", None) for name in files)
    return config.pluginmanager.hasplugin("benchmark") and (
        asked or bool(config.option.scaling_benchmark)
    )


def show(
    request: pytest.FixtureRequest,
    plan: str,
    arm: str,
    verdict: Verdict,
    launches: Sequence[LaunchRecord],
) -> None:
    """One row for a plan's arm: the median step of each of its launches; once a session."""
    if not wanted(request.config):
        return
    shown = request.config.stash.setdefault(_SHOWN, set())
    timed = [x for x in launches if x.arm == arm and x.purpose is Purpose.TIMED and x.usable]
    medians = [x.steps.median_s for x in timed if x.steps is not None]
    if not medians or (plan, arm) in shown:
        return
    shown.add((plan, arm))
    request.node.add_marker(pytest.mark.benchmark(timer=launch_clock, group=plan))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.extra_info.update(
        case=verdict.case,
        contrast=verdict.contrast,
        status=str(verdict.status),
        value=verdict.value,
        low=verdict.low,
        high=verdict.high,
        mde=verdict.mde,
    )
    values = iter(medians)

    def launch() -> None:
        global _NOW
        _NOW += next(values, 0.0)

    benchmark.pedantic(launch, rounds=len(medians), iterations=1)
