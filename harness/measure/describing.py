"""Describe cases by an agent without launching them, and cache the descriptions."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from harness.base import files
from harness.base.documents import Json, from_doc, to_doc
from harness.cases import CaseSpec, Catalogue, Data, Entry, Settings, digest, twins
from harness.cases.heads import read_head
from harness.cases.limits import ROUNDED, loss_limit, rounding
from harness.cases.recipes import plain
from harness.launch.engine import Where
from harness.measure.bench import Bench
from harness.record import Described, Expected, Reference


class DescribeCache:
    """Answers by the hash of their case; those of users' files, and of packages that may come and
    go, are asked for again.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._known = catalogue
        version = f"{files.digest_of_package()}-{metadata.version('torch')}"
        folder = files.cache_folder()
        self._path = folder / f"described-{version}.json" if folder is not None else None
        self._answers: dict[str, Json] = {}
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                self._answers = json.loads(self._path.read_text(encoding="utf-8"))

    def of(self, cases: Sequence[CaseSpec]) -> dict[str, Described]:
        """The descriptions of these cases that are known, by their hash."""
        return {
            case.hash: from_doc(Described, self._answers[case.hash])
            for case in cases
            if case.hash in self._answers
        }

    def keep(self, cases: Sequence[CaseSpec], described: Mapping[str, Described]) -> None:
        """Answers for the next time; a home that cannot be written to remembers nothing.

        An error may be a moment of a busy machine: it is no answer.
        """
        unknown = [case for case in cases if case.hash not in self._answers and self._lasts(case)]
        fresh = [case for case in unknown if not described[case.hash].error]
        self._answers |= {case.hash: to_doc(described[case.hash]) for case in fresh}
        if not fresh or self._path is None:
            return
        with contextlib.suppress(OSError):
            files.write({self._path: json.dumps(self._answers)})
            for old in self._path.parent.glob("described-*.json"):
                if old != self._path:
                    old.unlink(missing_ok=True)

    def _lasts(self, case: CaseSpec) -> bool:
        shipped = all(not file.endswith(".py") for file in self._known.files(case).values())
        packages = self._known.get("strategies", case.strategy).supports.packages
        return shipped and not case.script and not packages


def witness(case: CaseSpec, catalogue: Catalogue) -> CaseSpec | None:
    """The case that says the same of the model with no file of a user's but the model's own; None
    where the case has no others.
    """
    if all(entry.shipped or entry.kind == "models" for entry in catalogue.entries_of(case)):
        return None
    alone = plain(case)
    if catalogue.get("inputs", case.data).shipped:
        return catalogue.normalise(alone)
    knobs = {key: knob for key, knob in alone.knobs.items() if key.startswith(f"{case.model}.")}
    return catalogue.normalise(replace(alone, data=Data.RESIDENT, knobs=knobs))


def of_files(
    case: CaseSpec, answer: Described, beside: Described | None, catalogue: Catalogue
) -> Described:
    """The description with what keeps losses from being compared, or to the bit: a user's file
    excuses itself from nothing. A shipped strategy states facts.

    ``beside`` is the description of its witness. A file that says another thing of itself than when
    the case was planned is an error.
    """
    theirs = [entry for entry in catalogue.entries_of(case) if not entry.shipped]
    for entry in theirs:
        if read_head(entry.path)[1] != entry.head:
            message = f"{entry.path}: its head is another one than when the case was planned"
            return Described(error=message)
    expected = answer.expected
    if not theirs or answer.error or answer.unsupported:
        return answer
    if expected is None:
        return Described(error="its files left no word of what is expected")
    strategy = catalogue.get("strategies", case.strategy)
    excuses = [] if strategy.shipped else list(_excuses(expected, strategy))
    if any(_gated_otherwise(case, entry) for entry in theirs):
        excuses.append("TWIN")
    if answer.reference is None and case.communicate and not excuses:
        excuses.append("no reference")
    if answer.reference is not None and not _as_derived(case, expected, answer.reference, strategy):
        excuses.append("another reference")
    if beside is not None and beside.facts is not None:
        excuses += _unlike(answer, beside)
    elif beside is not None and catalogue.get("models", case.model).shipped:
        excuses.append("no witness")
    own_ideal = not strategy.shipped and expected.ideal_efficiency != 1
    return replace(
        answer,
        theirs=tuple(entry.kind for entry in theirs),
        own_ideal=own_ideal or expected.balance != 1,  # by a model whose FLOPs its own file counts
        excuses=tuple(excuses),
    )


def of_its_training(case: CaseSpec, answer: Described, catalogue: Catalogue) -> Described:
    """The description with a reference that only cases of the same model, samples and seed share,
    whichever key its files stated.
    """
    if answer.reference is None:
        return answer
    sizes = catalogue.get("models", case.model).head.get("SIZES", {})
    micro_batch = case.micro_batch or sizes.get(case.size, {}).get("batch", 0)
    samples = case.global_batch or micro_batch * case.world_size * case.accumulate
    trained = [case.model, case.size, case.seq_len, samples, case.seed]
    trained += [case.precision, case.optimizer]
    key = digest([answer.reference.key, *trained])
    return replace(answer, reference=replace(answer.reference, key=key))


def _unlike(answer: Described, beside: Described) -> Iterator[str]:
    """Names what a description says of its model that one without the other files does not."""
    if _of_model(answer) != _of_model(beside):
        yield "another model"
    if _reference_bytes(answer) > _reference_bytes(beside):
        yield "a larger reference"


def _of_model(described: Described) -> Sequence[object]:
    """The facts of a model that figures and targets rest on."""
    facts = described.facts
    if facts is None:
        return ()
    return (
        facts.num_params,
        facts.flops_per_sample,
        facts.tokens_per_sample,
        facts.loss_floor,
        facts.step_s,
    )


def _reference_bytes(described: Described) -> int:
    return 0 if described.reference is None else described.reference.memory_bytes


def _gated_otherwise(case: CaseSpec, entry: Entry) -> bool:
    """Whether a file's TWIN makes the gate check it at other knobs than it is timed with."""
    asked = case.knobs_of(entry.name, entry.knobs)
    return bool(twins.fewer(entry.name, asked, entry.head.get("TWIN", {})))


def _excuses(expected: Expected, strategy: Entry) -> Iterator[str]:
    """By what a user's strategy would keep its losses from being compared, or to the bit."""
    claims = {
        "repeatable=False": not expected.repeatable,
        "casts=True": expected.casts,
        "reorders=True": expected.reorders,
        "jobs": strategy.supports.jobs > 1,
    }
    yield from (name for name, claimed in claims.items() if claimed)


def _as_derived(case: CaseSpec, expected: Expected, reference: Reference, strategy: Entry) -> bool:
    """Whether a reference compares as closely, on as many shards, as follows from the case."""
    mesh = strategy.supports.mesh(case)
    limit = loss_limit(case, mesh)
    if expected.reorders:
        limit = max(limit, rounding(case))
    if expected.casts:
        limit = ROUNDED
    shards = 1 if strategy.supports.oracle == "simulated" else mesh.shards
    stated = (reference.limit, reference.coarse, reference.shards)
    return stated == (limit, expected.casts, shards)


def described(cases: Sequence[CaseSpec], catalogue: Catalogue) -> list[Described]:
    """Descriptions that a run of these cases would record; LaunchError where no agent starts."""
    with tempfile.TemporaryDirectory(prefix="scaleproof-describe-") as folder:
        bench = Bench(
            catalogue, catalogue.get("engines", Settings().engine), Where(folder=Path(folder))
        )
        with contextlib.closing(bench.fleets):
            return bench.describe(cases)
