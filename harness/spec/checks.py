"""What makes a case one that can be run: every check of it, made once, when it is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from harness.base.documents import Json
from harness.base.errors import SpecError, nearest
from harness.spec.case import CaseSpec, Mode
from harness.spec.heads import Supports


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A case, and what the heads of its files say."""

    case: CaseSpec
    supports: Supports
    sizes: Mapping[str, Mapping[str, Json]]


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must hold: ``wrong`` says what does not, or is empty."""

    wrong: Callable[[Subject], str]
    expected: str = ""
    fix: str = "scaleproof list"


def _size(s: Subject) -> str:
    return "" if s.case.size in s.sizes else f"model {s.case.model!r} has no size {s.case.size!r}"


def _device(s: Subject) -> str:
    if s.case.device in s.supports.devices:
        return ""
    return f"strategy {s.case.strategy!r} does not run on {s.case.device}"


def _mode(s: Subject) -> str:
    if s.case.mode in s.supports.modes:
        return ""
    return f"strategy {s.case.strategy!r} has no {s.case.mode} mode"


def _compressor(s: Subject) -> str:
    if s.supports.compressor == (s.case.compressor is not None):
        return ""
    need = "needs a" if s.supports.compressor else "takes no"
    return f"strategy {s.case.strategy!r} {need} compressor"


def _world(s: Subject) -> str:
    one = s.supports.worlds == "one" and s.case.world_size != 1
    return f"strategy {s.case.strategy!r} runs one rank only" if one else ""


def _counts(s: Subject) -> str:
    for name in ("micro_batch", "global_batch", "seq_len", "accumulate", "devices_per_rank"):
        value = getattr(s.case, name)
        if value is not None and value < 1:
            return f"{name} = {value}"
    return ""


def _shares(s: Subject) -> str:
    shares = s.case.shares
    if not shares or (len(shares) == s.case.world_size and min(shares) > 0):
        return ""
    return f"shares {shares} for {s.case.world_size} ranks"


def _stragglers(s: Subject) -> str:
    try:
        _ = s.case.slowed
    except ValueError as error:
        return str(error)
    return ""


def _sequence(s: Subject) -> str:
    without = s.case.seq_len is not None and "seq" not in s.sizes[s.case.size]
    return f"model {s.case.model!r} has no sequence length" if without else ""


def _nodes(s: Subject) -> str:
    if sum(s.case.nodes) == s.case.world_size and min(s.case.nodes) >= 1:
        return ""
    return f"nodes {s.case.nodes} do not add up to {s.case.world_size} ranks"


def _strong(s: Subject) -> str:
    wrong = s.case.mode is Mode.STRONG and s.case.global_batch is None
    return "strong mode needs a global batch" if wrong else ""


def _derived(s: Subject) -> str:
    wrong = s.case.mode is Mode.STRONG and s.case.micro_batch is not None
    return "strong mode derives the micro-batch" if wrong else ""


def _weak(s: Subject) -> str:
    wrong = s.case.mode is Mode.WEAK and s.case.global_batch is not None
    return "weak mode derives the global batch" if wrong else ""


CHECKS = (
    Check(wrong=_size, fix="scaleproof list models"),
    Check(wrong=_device),
    Check(wrong=_mode),
    Check(wrong=_compressor, expected="as compressed:topk/...", fix="scaleproof list compressors"),
    Check(wrong=_world),
    Check(wrong=_counts, expected="at least 1"),
    Check(wrong=_shares, expected="a number above 0 for each rank", fix="--set shares=[1,0.5]"),
    Check(wrong=_stragglers, fix="--set stragglers=1:0.5"),
    Check(wrong=_sequence),
    Check(wrong=_nodes),
    Check(wrong=_strong, expected="--set global_batch=N", fix="--set global_batch=16"),
    Check(wrong=_derived, expected="global_batch alone"),
    Check(wrong=_weak, expected="micro_batch alone"),
)  # fmt: skip


def check(case: CaseSpec, supports: Supports, sizes: Mapping[str, Mapping[str, Json]]) -> None:
    """SpecError for the first thing about a case that cannot be run."""
    subject = Subject(case=case, supports=supports, sizes=sizes)
    for one in CHECKS:
        if what := one.wrong(subject):
            expected = ", ".join(sizes) if one.wrong is _size else one.expected
            raise SpecError(what, where=case.id, expected=expected, fix=one.fix)


def check_knobs(
    asked: Mapping[str, Json], defaults: Mapping[str, Json], where: str
) -> dict[str, Json]:
    """The knobs that differ from their defaults; SpecError for one that nobody has."""
    knobs = {}
    for key, value in asked.items():
        if key not in defaults:
            raise SpecError(
                f"unknown knob {key!r}{nearest(key, defaults)}",
                where=where,
                expected=", ".join(sorted(k for k in defaults if not k.endswith(".version"))),
                fix="scaleproof list",
            )
        want = type(defaults[key])
        value = float(value) if want is float and type(value) is int else value
        if type(value) is not want:
            raise SpecError(
                f"knob {key} = {value!r}",
                where=where,
                expected=want.__name__,
                fix="scaleproof list",
            )
        if value != defaults[key]:
            knobs[key] = value
    return knobs
