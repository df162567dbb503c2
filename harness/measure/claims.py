"""Statements in a user's files that affect how the files are checked.

Some of these statements are not accepted, and reports list the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.cases import CaseSpec, Catalogue, Data, Entry, digest, twins
from harness.cases.heads import read_head
from harness.cases.limits import ROUNDED, loss_limit, rounding
from harness.cases.recipes import plain
from harness.record import Described, Expected, Reference


def witness(case: CaseSpec, catalogue: Catalogue) -> CaseSpec | None:
    """Return the witness of a case: a case with the same model, but without the user's other files.

    The description of the witness is compared with the description of the case. Return None if the
    only file of a user that the case uses is the file of its model.
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
    """Return the description with a list of the user's statements that weaken the loss comparison.

    The list is ``excuses``; reports show it, because a user's file must not exempt itself from a
    check unnoticed. Statements of a shipped strategy are accepted as facts. ``beside`` is the
    description of the case's witness. If the head of a file has changed since the case was planned,
    the description that is returned is an error.
    """
    theirs = [entry for entry in catalogue.entries_of(case) if not entry.shipped]
    for entry in theirs:
        if read_head(entry.path)[1] != entry.head:
            message = f"{entry.path}: the head of this file has changed since the case was planned"
            return Described(error=message)
    expected = answer.expected
    if not theirs or answer.refused:
        return answer
    if expected is None:
        return Described(error="the files of the case state no expectations")
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
        own_ideal=own_ideal or expected.balance != 1,  # its own file counts the FLOPs
        excuses=tuple(excuses),
    )


def of_its_training(case: CaseSpec, answer: Described, catalogue: Catalogue) -> Described:
    """Return the description with a reference key that only cases of the same training have.

    The key combines the key that the files state with the model, its sizes, the number of samples,
    the seed, the precision and the optimizer.
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
    """Yield how the model in a description differs from the model in the witness's description."""
    if _of_model(answer) != _of_model(beside):
        yield "another model"
    if _reference_bytes(answer) > _reference_bytes(beside):
        yield "a larger reference"


def _of_model(described: Described) -> Sequence[object]:
    """Return the facts of a model on which metrics and targets depend.

    Return an empty tuple if the description has no facts.
    """
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
    """Return the memory (bytes) of the reference, or 0 if there is none."""
    return 0 if described.reference is None else described.reference.memory_bytes


def _gated_otherwise(case: CaseSpec, entry: Entry) -> bool:
    """Return whether the TWIN in a file's head changes knobs for the correctness check.

    The check then does not use the knobs of the timed launches.
    """
    asked = case.knobs_of(entry.name, entry.knobs)
    return bool(twins.fewer(entry.name, asked, entry.head.get("TWIN", {})))


def _excuses(expected: Expected, strategy: Entry) -> Iterator[str]:
    """Yield the statements of a user's strategy that weaken or prevent the comparison of its
    losses.
    """
    claims = {
        "repeatable=False": not expected.repeatable,
        "casts=True": expected.casts,
        "reorders=True": expected.reorders,
        "jobs": strategy.supports.jobs > 1,
    }
    yield from (name for name, claimed in claims.items() if claimed)


def _as_derived(case: CaseSpec, expected: Expected, reference: Reference, strategy: Entry) -> bool:
    """Return whether a reference has the loss limit and the number of shards that this package
    derives from the case.
    """
    mesh = strategy.supports.mesh(case)
    limit = loss_limit(case, mesh)
    if expected.reorders:
        limit = max(limit, rounding(case))
    if expected.casts:
        limit = ROUNDED
    shards = 1 if strategy.supports.oracle == "simulated" else mesh.shards
    stated = (reference.limit, reference.coarse, reference.shards)
    return stated == (limit, expected.casts, shards)
