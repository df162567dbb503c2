"""Remedies for a large term: settings of the case that can be tried beside it.

A remedy is one change of a case. Which of them help is measured, not known: what removes transfer
may cost compute, and a smaller bucket may be worse than a larger one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from harness.base.documents import Json
from harness.cases import CaseSpec, Catalogue, Mode
from harness.record import Expected, Term
from harness.record.budget import EXPOSED

#: How much smaller and larger buckets are tried.
BUCKETS = (0.25, 4.0)


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One change of a case: ``change`` names what of it becomes what.

    ``alike`` is whether the training still computes the same: a codec loses something, and a larger
    batch trains otherwise.
    """

    name: str
    change: Mapping[str, Json]
    alike: bool = True

    def of(self, case: CaseSpec) -> CaseSpec:
        """The case with its change."""
        fields: dict[str, Any] = {
            key: value for key, value in self.change.items() if "." not in key
        }
        knobs = {key: value for key, value in self.change.items() if "." in key}
        case = case.fed_by(fields.pop("data", case.data)) if "data" in fields else case
        return replace(case, **fields, knobs={**case.knobs, **knobs})


def remedies(
    term: Term, case: CaseSpec, expected: Expected, catalogue: Catalogue
) -> Iterator[Remedy]:
    """The remedies that may be tried against a term, the mildest first."""
    settings = {Term(t): setting.partition("=") for t, setting in expected.remedies.items()}
    if term in settings or (term is Term.WAIT and Term.BUBBLE in settings):
        name, _, value = settings.get(term) or settings[Term.BUBBLE]
        yield Remedy(name=f"{name}={value}", change={name: _number(value)})
    if term in (Term.TRANSFER, Term.UNDIVIDED) and expected.stages == 1:
        yield from _of_communication(case, catalogue)
    if term in (Term.DATA, Term.MOVE):
        yield from _of_input(case, catalogue)
    if term in (*EXPOSED, Term.LAUNCH, Term.IDLE, Term.OTHER):
        yield _twice(case, expected)


def _of_input(case: CaseSpec, catalogue: Catalogue) -> Iterator[Remedy]:
    """Twice the workers, then inputs that cost a step less."""
    entry = catalogue.get("inputs", case.data)
    facts = entry.head["INPUT"]
    if "more" in facts:
        name = f"{case.data}.{facts['more']}"
        twice = 2 * max(1, int(case.knobs_of(case.data, entry.knobs)[facts["more"]]))
        yield Remedy(name=f"{name}={twice}", change={name: twice})
    for other in facts["instead"]:
        yield Remedy(name=f"data={other}", change={"data": other})


def _of_communication(case: CaseSpec, catalogue: Catalogue) -> Iterator[Remedy]:
    """Other buckets, then codecs that make it less and are not wrong on purpose."""
    knob = "bucket_cap_mb"
    defaults = catalogue.get("strategies", case.strategy).knobs
    if knob in defaults:
        now = float(case.knobs_of(case.strategy, defaults)[knob])
        for factor in BUCKETS:
            name = f"{case.strategy}.{knob}"
            yield Remedy(name=f"{name}={now * factor:g}", change={name: now * factor})
    hooked = catalogue.get("strategies", case.strategy).head.get("HOOKED")
    if not hooked or any(key.startswith(f"{case.strategy}.") for key in case.knobs):
        return  # the strategy that compresses has no such knob
    for other in catalogue.entries["strategies"].values():
        if not other.head["SUPPORTS"].get("compressor"):
            continue
        for codec, entry in catalogue.entries["compressors"].items():
            if entry.head.get("ERROR_BOUND") and not entry.head.get("CONTROL"):
                change: dict[str, Json] = {"strategy": other.name, "compressor": codec}
                yield Remedy(name=f"{other.name}:{codec}", change=change, alike=False)


def _twice(case: CaseSpec, expected: Expected) -> Remedy:
    """Twice the work for each exchange of gradients."""
    strong = case.mode is Mode.STRONG
    batch = expected.global_batch if strong else expected.global_batch // case.world_size
    field = "global_batch" if strong else "micro_batch"
    return Remedy(name=f"{field}={2 * batch}", change={field: 2 * batch}, alike=False)


def _number(value: str) -> Json:
    try:
        return int(value)
    except ValueError:
        return value
