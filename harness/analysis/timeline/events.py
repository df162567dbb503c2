"""Decode the events of a trace into the few fields that are used.

msgspec decodes whole blocks. The arguments of most events are never needed, so arguments are stored
as text until they are needed. If msgspec rejects a block (ids of unexpected types, damaged text),
the standard library decodes it event by event. Events that cannot be decoded even then are counted.
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
#: Matches the border between two events: the end of the first, and the beginning of the second.
BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|dur|id)"\s*:)')
#: Kinds of events that the reader understands, or that never run on a device.
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
#: Kinds of events that are dropped, such as Python frames and arrows between events. They make up
#: as much as nine tenths of a trace with stacks, and no analysis uses them.
DROPPED = frozenset({"python_function", "Trace", "fwdbwd", "async_cpu_to_gpu", "ac2g"})
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.S)


class Ties(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"collective": "Collective name", "npu_stream": "Stream Id", "task": "Task Type"},
):
    """The arguments that relate an event to other events.

    They are read for events on a device, and for host calls to the runtime of a device.
    ``npu_stream`` is the field in which torch_npu writes the stream of an Ascend device, and
    ``task`` is what ran there. Rows of the host have no task.
    """

    correlation: int = -1
    stream: int = -1
    collective: str = ""
    npu_stream: int = -1
    task: str = ""


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
    """The arguments of an event; all are optional.

    No value refers to the text of the block. A trace keeps some of these objects, and a reference
    would keep the whole block in memory.
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
    """The total allocated memory in bytes after an allocation, on one kind of device."""

    allocated: int = -1
    kind: int = -1


NO_ARGS = msgspec.Raw(b"{}")
_T = TypeVar("_T", Ties, Args, MemoryEvents)


class Event(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """One timed event of the file.

    ``ts`` (the start) and ``dur`` (the duration) are in us. ``args`` is text that is not decoded.
    """

    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = NO_ARGS


class _Usual(Event, gc=False, tag_field="ph", tag="X"):
    """An event of a known kind, which needs no separate string for its kind."""

    cat: Kind = ""


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """An instant event, which usually is an allocation of memory."""

    ts: float = 0.0
    args: msgspec.Raw = NO_ARGS


#: Types for events of all other phases of the format, such as flows and metadata. Their fields are
#: not stored.
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
    """The timed events and the instant events of a block.

    ``lost`` is the number of events that could not be read.
    """

    timed: list[Event]
    instants: list[Instant]
    lost: int = 0


def decode(block: bytes) -> Found:
    """Decode a block with the fastest decoder that accepts it."""
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
    """Return the decoded arguments of several events."""
    try:
        decoded: list[_T] = _of[of](b"[" + b",".join(texts) + b"]")
        return decoded
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return [_lenient(bytes(text), of) for text in texts]


def _salvage(block: bytes) -> list[Any]:
    """Decode the events of a block one by one. An event that could not be read becomes None."""
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
    """Decode one event; escape quotes in its name if necessary. Return None if that fails."""
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
    """Decode the arguments whose values have a usable type; the others keep their defaults."""
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
