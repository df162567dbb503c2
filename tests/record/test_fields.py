"""Verify protects every field of a record: it recomputes the field or compares it with the chain."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.reading import load
from harness.analysis.verify import verify
from harness.base import files
from harness.cases import Catalogue, Settings
from harness.host.admission import Finding, Level
from harness.measure.run import Run
from harness.record import RunRecord

#: Fields that are empty in this run. Verify compares their entries with the chain one by one, as it
#: does for launches (``analysis.audit._entered``).
NONE_HERE = {"fabric", "recoveries", "played", "suspects"}


@pytest.fixture(scope="module")
def ended(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path]:
    """Return a run that today's code wrote, with the launches of the sample run."""
    of = load(sample)
    run = Run(
        Catalogue(), Settings(nodes=of.settings.nodes), tmp_path_factory.mktemp("results"),
        of.thresholds, queued_s=lambda: 0.0,
    )  # fmt: skip
    run.machine, run.software = of.machine, dict(of.software)
    run.announce(of.plans)
    run.described.update(of.described)
    run.seal()
    run.freeze(of.windows)
    for block in of.blocks:
        run.begin(block)
    for launch in of.launches:
        run.enter([launch])
    shutil.copytree(sample / "launches", run.folder / "launches", dirs_exist_ok=True)
    run.keep()
    return run.save(complete=True), run.folder


def other(value: Any) -> Any:
    """Return a different value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return value[:-1] if value else ("one more",)
    if isinstance(value, dict):
        return dict(list(value.items())[:-1]) if value else {"one": {}}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        name = next(
            f.name for f in dataclasses.fields(value) if isinstance(getattr(value, f.name), str)
        )
        return dataclasses.replace(value, **{name: other(getattr(value, name))})
    return 0.5 if value is None else value


def found(run: RunRecord, folder: Path) -> set[str]:
    return set(verify(run, folder).differences)


def test_words_of_verdicts_are_held_against_those_of_the_version_that_wrote_them(
    ended: tuple[RunRecord, Path],
) -> None:
    """Another version may word its verdicts differently, so verify accepts its sentences as
    recorded. It checks in either case whether a verdict has a caveat.
    """
    run, folder = ended

    def forged(**words: str) -> set[str]:
        verdicts = [dataclasses.replace(verdict, **words) for verdict in run.verdicts]
        return found(dataclasses.replace(run, verdicts=tuple(verdicts)), folder)

    assert not verify(run, folder).worded
    assert not forged(detail="a node's power was lost") - found(run, folder)
    assert any("caveat, unlike the recorded verdict" in text for text in forged(doubt="x"))
    launches = [
        dataclasses.replace(
            launch,
            ranks=tuple(
                dataclasses.replace(rank, sources={"scaleproof": files.digest_of_package()})
                for rank in launch.ranks
            ),
        )
        for launch in run.launches
    ]
    run = dataclasses.replace(run, launches=tuple(launches))
    assert verify(run, folder).worded
    assert any("power was lost" in text for text in forged(detail="a node's power was lost"))


@pytest.mark.parametrize(
    "name", [f.name for f in dataclasses.fields(RunRecord) if f.name not in NONE_HERE]
)
def test_a_changed_field_is_found(ended: tuple[RunRecord, Path], name: str) -> None:
    run, folder = ended
    value: Any = getattr(run, name)
    value = {**value} if isinstance(value, dict) else value
    special: dict[str, Any] = {
        "nodes": (run.machine,),
        "started_at": "2020-01-01T00:00:00+00:00",
        "admission": (Finding(check="load", level=Level.OK, text="quiet"),),
    }
    changed = special.get(name, other(value))
    forged = dataclasses.replace(run, **{name: changed})
    new = found(forged, folder) - found(run, folder)
    assert new, f"{name}: {value!r} -> {changed!r}"
