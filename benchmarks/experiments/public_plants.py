"""Test that mistakes in public training scripts are named, and that similar correct scripts pass.

    python benchmarks/experiments/public_plants.py [--only WORDS ...] [--repeats N] [--results FILE]

Each script is measured on 1 and 2 CPU ranks, as a user would run it. A mistake must be named, in
the verdict or below the table of the script. Its correct twin runs ``--repeats`` times, and must
cause neither an error nor a remark. Calibration launches are sufficient for both, so no timed
launches are made. The list is ``public_plants.toml``. Scripts, data and FILE are as in
``public_scripts.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shlex
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import made_up
from public_scripts import Script, fetched, listed

from harness.cases import Catalogue, Device, Mode, Protocol, Settings, Site
from harness.cases.script import script_plan
from harness.interface.report.script import lines as script_table
from harness.measure import bench
from harness.measure.measurer import Measurer
from harness.measure.progress import Progress
from harness.measure.session import Session
from harness.record import Status

LIST = Path(__file__).with_suffix(".toml")
SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))
WINDOW = Protocol(steps=14, cut=2, min_blocks=1, max_blocks=1, fixed=True)
#: Seconds that ranks wait for a rank that skips steps.
MEET_S = 30.0

#: Words of remarks on mistakes that only cost time.
REMARKS = (
    "find_unused_parameters",
    "comes to its backward pass",
    "the others wait for it",
    "evaluates within the window",
)

Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Plant:
    """One entry of the list; the list explains its fields."""

    of: str
    mistake: str
    says: str
    edits: Edits = ()
    right: Edits = ()
    seeded: Edits = ()
    more: str = ""
    plant_more: str = ""
    strong: bool = False
    weak: bool = False


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """A script that is measured: one with a mistake, or its correct twin."""

    script: Script
    says: str = ""  # words of the message about the mistake; empty for a twin
    turn: int = 0

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr((self.script, self.says, self.turn)).encode()).hexdigest()[:12]


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of one measured script: a line of the results."""

    digest: str
    mistake: str
    twin: bool
    said: str

    def right(self, says: str) -> bool:
        """Return whether the mistake is named, or whether the twin was measured without any
        message.
        """
        return not self.said if self.twin else says in self.said


def planted() -> list[Plant]:
    """Return the entries of the list."""
    document = tomllib.loads(LIST.read_text())
    out = []
    for entry in document["plant"]:
        of = entry["of"]
        for name, value in document["common"].items():
            of = of.replace(f"<{name}>", value)
        edits = {
            key: tuple((old, new) for old, new in entry.get(key, ()))
            for key in ("edits", "right", "seeded")
        }
        out.append(Plant(**{**entry, **edits, "of": of}))
    return out


def ladders(plant: Plant, scripts: Mapping[str, Script], repeats: int) -> list[Ladder]:
    """Return the script with the mistake, and its correct twin ``repeats`` times."""
    base = scripts[plant.of]
    strong = base.strong or plant.strong
    words = " ".join(filter(None, (base.words, plant.more)))
    both = replace(base, words=words, edits=base.edits + plant.seeded, strong=strong)
    mistaken = replace(
        both,
        words=" ".join(filter(None, (words, plant.plant_more))),
        edits=both.edits + plant.edits,
        strong=strong and not plant.weak,
    )
    twin = replace(both, edits=both.edits + plant.right)
    return [
        Ladder(script=mistaken, says=plant.says),
        *(Ladder(script=twin, turn=turn) for turn in range(repeats)),
    ]


def measured(session: Session, ladder: Ladder, plant: Plant, cache: Path, data: Path) -> Found:
    """Make the calibration launches of one script; return the messages about it."""
    with tempfile.TemporaryDirectory() as kept_here:
        edits = tuple((old, new.replace("<kept>", kept_here)) for old, new in ladder.script.edits)
        script = replace(ladder.script, edits=edits)
        mode = Mode.STRONG if script.strong else Mode.WEAK
        with contextlib.chdir(fetched(script, cache, data)):
            words = shlex.split(script.words)
            plan = script_plan(words, SITE, mode, script.declared, WINDOW)
            number = len(session.run.plans)  # another seed makes it another case; scripts ignore it
            arms = [replace(a, case=replace(a.case, seed=a.case.seed + number)) for a in plan.arms]
            plan = replace(plan, arms=tuple(arms))
            measurer = Measurer(session)
            measurer.measure([plan])
    (verdict,) = measurer.verdicts(plan)
    record = session.run.record(complete=False)
    mine = replace(record, plans=tuple(x for x in record.plans if x.hash == plan.hash))
    ill = [str(x.wrong or x.cause) for x in record.launches if x.plan == plan.hash and not x.usable]
    table = [line.strip() for line in script_table(mine, 10_000)[1:]]
    noticed = [line for line in table if any(remark in line for remark in REMARKS)]
    error = [verdict.detail] * (verdict.status is Status.ERROR)
    sentences = [*error, *ill, *(table if ladder.says else noticed)]
    return Found(
        digest=ladder.digest,
        mistake=plant.mistake,
        twin=not ladder.says,
        said="; ".join(sentences),
    )


def kept(results: Path | None) -> Mapping[str, Found]:
    """Return earlier results by their digest; incomplete lines are ignored."""
    out = dict[str, Found]()
    for line in (
        results.read_text().splitlines() if results is not None and results.exists() else ()
    ):
        with contextlib.suppress(ValueError):
            document = Found(**json.loads(line))
            out[document.digest] = document
    return out


def main() -> int:
    """Measure all, and print a line for each; return 1 if a result is not as listed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORDS")
    parser.add_argument(
        "--repeats", type=int, default=1, help="number of runs of each correct twin"
    )
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "public-scripts")
    parser.add_argument("--results", type=Path, metavar="FILE")
    asked = parser.parse_args()
    data = made_up.everything(asked.cache.resolve() / "data")
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    bench.SCRIPTS = replace(bench.SCRIPTS, meet_s=MEET_S)
    scripts = {script.name: script for script in listed()}
    done = dict(kept(asked.results))
    named = twins = unlike = 0
    with tempfile.TemporaryDirectory() as runs:
        settings = Settings(fabric=False, timeline=False, nodes=(2,), budget_s=1.0)
        session = Session(Catalogue(), settings, Path(runs), (), Progress())
        for plant in planted():
            where = f"{plant.of} {plant.mistake}"
            if asked.only and not any(only in where for only in asked.only):
                continue
            for ladder in ladders(plant, scripts, asked.repeats):
                outcome = done.get(ladder.digest)
                if outcome is None or not outcome.right(plant.says):
                    outcome = measured(session, ladder, plant, asked.cache.resolve(), data)
                    done[ladder.digest] = outcome
                    if asked.results is not None:
                        with asked.results.open("a") as file:
                            file.write(json.dumps(asdict(outcome)) + "\n")
                right = outcome.right(plant.says)
                named += right and not outcome.twin
                twins += right and outcome.twin
                unlike += not right
                told(plant, ladder, outcome, right)
        session.close()
    print(
        f"{named} mistakes named, {twins} correct twins without a message, {unlike} not as listed"
    )
    return min(1, unlike)


def told(plant: Plant, ladder: Ladder, outcome: Found, right: bool) -> None:
    """Print one result."""
    kind = f"correct twin {ladder.turn + 1}" if outcome.twin else plant.mistake
    print(f"{'' if right else 'WRONG '}{plant.of.strip()}: {kind}", flush=True)
    if outcome.said and not (right and outcome.twin):
        at = max(0, outcome.said.find(plant.says))
        print(f"      {outcome.said[at : at + (200 if right else 1500)]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
