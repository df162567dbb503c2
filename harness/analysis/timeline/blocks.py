"""Cuts a trace file, plain or gzipped, into blocks of whole events: it is never held whole."""

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from zipfile import BadZipFile

import msgspec

from harness.base.errors import ScaleproofError
from harness.base.packs import opened

BLOCK_BYTES = 1 << 20
#: What is held back at the end of what was read: a trace's tail may look like events.
HELD_BYTES = 1 << 16
#: Longer than any event of a profiler; a file that claims one would be held whole.
EVENT_BYTES = 64 << 20
_START = re.compile(rb'"traceEvents"\s*:\s*\[\s*')
#: The border between two events: where the first closes, and where the second begins.
BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|args|dur|id)"\s*:)')


class Blocks:
    """A file's blocks. Once they are read, ``meta`` has the trace's header and tail, and ``broken``
    says what is wrong with the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.meta: dict[str, Any] = {}
        self.broken = ""

    def __iter__(self) -> Iterator[bytes]:
        try:
            with opened(self.path) as handle:
                yield from self._cut(self._chunks(handle))
        except (OSError, BadZipFile) as error:
            reason = getattr(error, "strerror", None) or error
            raise ScaleproofError(
                f"cannot be read: {reason}",
                where=str(self.path),
                fix="scaleproof timeline rank*.json.gz",
            ) from None

    def _chunks(self, handle: IO[bytes]) -> Iterator[bytes]:
        """The file's text, decompressed if it is gzipped; as much of a broken one as there is."""
        magic = handle.read(2)
        handle.seek(0)
        if magic != b"\x1f\x8b":
            while chunk := handle.read(BLOCK_BYTES):
                yield chunk
            return
        member = zlib.decompressobj(wbits=31)
        inside = False
        while chunk := handle.read(max(1, BLOCK_BYTES // 8)):
            while chunk:
                try:
                    text = member.decompress(chunk, BLOCK_BYTES)  # zeros grow a thousandfold
                except zlib.error as error:
                    self.broken = f"the compressed file is damaged ({error})"
                    return
                inside = not member.eof
                chunk = member.unconsumed_tail or member.unused_data
                if member.eof:
                    member = zlib.decompressobj(wbits=31)
                if text:
                    yield text
        if inside:
            self.broken = "the compressed file is cut short"

    def _cut(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        rest = next(chunks, b"")
        start = _START.search(rest)
        while start is None and rest.lstrip()[:1] == b"{" and (more := next(chunks, b"")):
            rest += more
            start = _START.search(rest)
        if start is not None:
            self._header(rest[: start.start()])
            rest = rest[start.end() :]
        elif rest.lstrip()[:1] == b"[":  # the other form of the format: a bare list
            rest = rest.lstrip()[1:]
        else:
            return
        for more in chunks:
            border = _last_border(more)
            if border is None:  # a small chunk, or a large event
                if len(rest) > EVENT_BYTES:
                    self.broken = f"it has an event of more than {EVENT_BYTES >> 20} MB"
                    return
                rest, more = b"", rest + more
                border = _last_border(more)
            if border is not None:  # joined once: each copy costs as much as reading does
                yield b"".join((b"[", rest, memoryview(more)[: border.start() + 1], b"]"))
                more = more[border.end() :]
            rest = more
        yield from self._last(rest)

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """Reads the end of a file: the last events and the tail, or a broken end.

        The tail may hold lists of its own (the devices): the events end where both parts are whole,
        or else, as some event can be damaged, where they may end.
        """
        ends = [m.start() for m in re.finditer(rb"\]", rest)][::-1]
        for whole in (_is_whole, _may_end):
            for close in ends:
                events = rest[:close].rstrip().removesuffix(b",")
                tail = rest[close + 1 :].strip()
                if not whole(events):
                    continue
                with contextlib.suppress(ValueError):
                    text = b"{" + tail.removeprefix(b",").removesuffix(b"}") + b"}"
                    self.meta.update(json.loads(text))
                    yield b"[" + events + b"]"
                    return
        self.broken = self.broken or "the file ends in the middle of its events"
        cut = None
        for border in BORDER.finditer(rest):
            cut = border
        if cut is not None:
            yield b"[" + rest[: cut.start() + 1] + b"]"

    def _header(self, text: bytes) -> None:
        with contextlib.suppress(ValueError):
            body = text.rstrip().removesuffix(b",") + b"}"
            self.meta.update(json.loads(body.decode("utf-8", "replace"), strict=False))


def _last_border(chunk: bytes) -> re.Match[bytes] | None:
    """The last border in sight; the event after it may not be whole yet."""
    last = max(0, len(chunk) - HELD_BYTES)
    for sight in (HELD_BYTES // 16, HELD_BYTES, last):
        borders = list(BORDER.finditer(chunk, max(0, last - sight), last))
        if borders:
            return borders[-1]
    return None


def _is_whole(events: bytes) -> bool:
    """Whether these are events, separated by commas."""
    try:
        msgspec.json.decode(b"[" + events + b"]", type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    return True


def _may_end(events: bytes) -> bool:
    return not events or events.endswith((b"}", b"["))
