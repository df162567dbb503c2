"""Events of a trace: decoded by msgspec into the few fields that are used.

An event's arguments stay text until someone wants them: of most events nobody does.

What msgspec refuses (ids of odd types, broken text) goes through the standard library, event by
event; what even that cannot read is counted, never passed over in silence.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

INT64 = (1 << 63) - 1
#: The border between two events: where the first closes, and where the second begins.
BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|dur|id)"\s*:)')
#: Kinds of events that are understood, or are known to take no time of a device.
Kind = Literal[
    "cpu_op",
    "user_annotation",
    "gpu_user_annotation",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "hip_runtime",
    "xpu_runtime",
    "xpu_driver",
    "cuda_sync",
    "cuda_event",
    "overhead",
    "cpu_instant_event",
    "external_correlation",
    "cuda_profiler_range",
    "gpu_pm_counter",
    "privateuse1_runtime",
    "privateuse1_driver",
    "",
    "python_function",
    "Trace",
    "fwdbwd",
    "async_cpu_to_gpu",
    "ac2g",
]
#: Python frames and graph nodes: up to nine tenths of a trace with stacks, none of it timed here.
DROPPED = frozenset({"python_function", "Trace", "fwdbwd", "async_cpu_to_gpu", "ac2g"})
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.S)


class Ties(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"collective": "Collective name", "npu_stream": "Stream Id"},
):
    """Fields that tie an event to others: read of every event on a device or that launches one.

    ``npu_stream`` is where torch_npu writes the stream of an Ascend device.
    """

    correlation: int = -1
    stream: int = -1
    collective: str = ""
    npu_stream: int = -1


class Args(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "collective": "Collective name",
        "nelems": "In msg nelems",
        "group": "Process Group Name",
        "ranks": "Process Group Ranks",
        "size": "Group size",
        "seq": "Seq",
        "dtype": "dtype",
        "types": "Input type",
        "source": "Src Rank",
        "target": "Dst Rank",
        "dims": "Input Dims",
        "inputs": "Concrete Inputs",
    },
):
    """The fields that an event may carry beside its times; everything optional.

    Nothing here is a view of the text: a trace keeps some of these, and would keep its blocks.
    """

    collective: str = ""
    nelems: int = -1
    group: str = ""
    ranks: str = ""
    size: int = -1
    seq: int = -1
    source: int = -1
    target: int = -1
    dims: Any = None
    inputs: Any = None
    dtype: str = ""
    types: Any = None


class MemoryEvents(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "allocated": "Total Allocated",
        "kind": "Device Type",
    },
):
    """The memory that is allocated after each allocation, on one kind of device."""

    allocated: int = -1
    kind: int = -1


NO_ARGS = msgspec.Raw(b"{}")
_T = TypeVar("_T", Ties, Args, MemoryEvents)


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One timed event as written; ``ts`` and ``dur`` in us, ``args`` as text."""

    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = NO_ARGS


class _Usual(Event, gc=False, tag_field="ph", tag="X"):
    """One of a known kind: it needs no string of its own."""

    cat: Kind = ""


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An allocation, mostly."""

    ts: float = 0.0
    args: msgspec.Raw = NO_ARGS


#: Flows, metadata and whatever else the format knows: nothing of it is kept, not even for a moment.
_OTHERS = tuple(
    msgspec.defstruct(f"_Other{ord(ph)}", (), gc=False, tag_field="ph", tag=ph)
    for ph in "sftMBEIbneCPNODVvRc()"
)


def _decoder(*kinds: Any) -> Any:
    either = reduce(or_, kinds)
    return msgspec.json.Decoder(list[either]).decode  # type: ignore[valid-type]


_usual = _decoder(_Usual, Instant, *_OTHERS)
_any = _decoder(Event, Instant, *_OTHERS)
_of = {of: _decoder(of) for of in (Ties, Args, MemoryEvents)}


class Found(NamedTuple):
    """A block's timed events, its instants, and how many events could not be read."""

    timed: list[Event]
    instants: list[Instant]
    lost: int = 0


def decode(block: bytes) -> Found:
    for attempt, kind in ((_usual, _Usual), (_any, Event)):
        with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError):
            return _found(attempt(block), kind)
    events = _salvage(block)
    return _found(events, Event, events.count(None))


def _found(events: list[Any], kind: type[Event], lost: int = 0) -> Found:
    timed = [event for event in events if type(event) is kind and event.cat not in DROPPED]
    instants = (
        [] if len(timed) == len(events) else [event for event in events if type(event) is Instant]
    )
    return Found(timed, instants, lost)


def arguments(texts: Sequence[msgspec.Raw], of: type[_T]) -> list[_T]:
    """The arguments of some events, decoded at once."""
    try:
        decoded: list[_T] = _of[of](b"[" + b",".join(texts) + b"]")
        return decoded
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [_lenient(bytes(text), of) for text in texts]


def _salvage(block: bytes) -> list[Any]:
    """The events of a block, one by one; None for those that could not be read."""
    events: list[Any] = []
    begin = 1
    borders = [m.start() + 1 for m in BORDER.finditer(block)]
    for end in [*borders, len(block) - 1]:
        text = block[begin:end].decode("utf-8", "replace").strip().lstrip(",").strip()
        begin = end
        if text:
            events.append(_event(text))
    return events


def _event(text: str) -> Any:
    """One event, its name's unescaped quotes put right; None if that does not help."""
    for attempt in (text, _NAME.sub(_quoted, text)):
        with contextlib.suppress(ValueError):
            doc = json.loads(attempt, strict=False)
            if not isinstance(doc, dict):
                return None
            kind = {"X": Event, "i": Instant}.get(str(doc.get("ph")))
            if kind is None:
                return _OTHERS[0]()
            fields = {
                key: value for key, value in doc.items() if key != "args" and value is not None
            }
            event: Event | Instant = msgspec.convert(fields, kind, strict=False)
            event.args = msgspec.Raw(json.dumps(doc.get("args", {})).encode())
            return event
    return None


def _quoted(match: re.Match[str]) -> str:
    return match[1] + re.sub(r'(?<!\\)"', r"\"", match[2]) + match[3]


def _lenient(text: bytes, of: type[_T]) -> _T:
    """The arguments that have a type that can be used; the others keep their defaults."""
    doc = json.loads(text.decode("utf-8", "replace"), strict=False)
    usable: dict[str, Any] = {}
    if not isinstance(doc, dict):
        return of()
    for info in msgspec.structs.fields(of):
        value = doc.get(info.encode_name)
        if info.type is Any:
            usable[info.name] = value
        elif info.type is int:
            with contextlib.suppress(TypeError, ValueError):
                usable[info.name] = min(int(value), INT64)  # type: ignore[arg-type]
        elif info.type is str and isinstance(value, str):
            usable[info.name] = value
    return of(**usable)
