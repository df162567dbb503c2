"""Events of a trace: decoded by msgspec into the few fields that are used.

What msgspec refuses (ids of odd types, broken text) goes through the standard library, event by
event; what even that cannot read is counted, never passed over in silence.
"""

import contextlib
import json
import re
from typing import Any

import msgspec

from harness.analysis.timeline.blocks import BORDER

INT64 = (1 << 63) - 1
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*,\s*"(?:ph|cat|pid|tid|ts|dur|args)"\s*:)', re.S)


class Args(msgspec.Struct, frozen=True, gc=False, rename={
    "correlation": "correlation", "stream": "stream",
    "collective": "Collective name", "nelems": "In msg nelems",
    "group": "Process Group Name", "ranks": "Process Group Ranks", "size": "Group size",
    "seq": "Seq", "dtype": "dtype", "types": "Input type",
    "source": "Src Rank", "target": "Dst Rank", "dims": "Input Dims",
    "inputs": "Concrete Inputs", "allocated": "Total Allocated", "device_type": "Device Type",
}):  # fmt: skip
    """What an event may carry beside its times; everything optional."""

    correlation: int = -1
    stream: int = -1
    collective: str = ""
    nelems: int = -1
    group: str = ""
    ranks: str = ""
    size: int = -1
    seq: int = -1
    source: int = -1
    target: int = -1
    dims: msgspec.Raw = msgspec.Raw()
    inputs: msgspec.Raw = msgspec.Raw()
    dtype: str = ""
    types: msgspec.Raw = msgspec.Raw()
    allocated: int = -1
    device_type: int = -1


NO_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """One event as written; ``ts`` and ``dur`` in us."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = 0.0
    dur: float = 0.0
    args: Args = NO_ARGS


_decode = msgspec.json.Decoder(list[Event]).decode


def decode(block: bytes) -> tuple[list[Event], int]:
    """The events of a block, and how many of them could not be read."""
    try:
        return _decode(block), 0
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _salvage(block)


def _salvage(block: bytes) -> tuple[list[Event], int]:
    out: list[Event] = []
    lost = 0
    begin = 1
    borders = [m.start() + 1 for m in BORDER.finditer(block)]
    for end in [*borders, len(block) - 1]:
        text = block[begin:end].decode("utf-8", "replace").strip().lstrip(",").strip()
        begin = end
        if not text:
            continue
        event = _event(text)
        if event is None:
            lost += 1
        else:
            out.append(event)
    return out, lost


def _event(text: str) -> Event | None:
    """One event, its name's unescaped quotes put right; None if that does not help."""
    for attempt in (text, _NAME.sub(_quoted, text)):
        with contextlib.suppress(ValueError):
            doc = json.loads(attempt, strict=False)
            args = doc.get("args")
            clean = {k: doc.get(k) for k in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
            event = msgspec.convert(
                {k: v for k, v in clean.items() if v is not None}, Event, strict=False
            )
            if isinstance(args, dict):
                event.args = _args(args)
            return event
    return None


def _quoted(match: re.Match[str]) -> str:
    return match[1] + re.sub(r'(?<!\\)"', r"\"", match[2]) + match[3]


def _args(doc: dict[str, Any]) -> Args:
    """Whatever of the arguments has a type that can be used."""
    usable: dict[str, Any] = {}
    for info in msgspec.structs.fields(Args):
        value = doc.get(info.encode_name)
        if info.type is msgspec.Raw and value is not None:
            usable[info.name] = msgspec.Raw(json.dumps(value).encode())
        elif info.type is int:
            with contextlib.suppress(TypeError, ValueError):
                usable[info.name] = min(int(value), INT64)  # type: ignore[arg-type]
        elif info.type is str and isinstance(value, str):
            usable[info.name] = value
    return Args(**usable)
