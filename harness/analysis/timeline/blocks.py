"""Cuts a trace file, plain or gzipped, into blocks of whole events: it is never held whole."""

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from harness.base.errors import ScaleproofError

BLOCK_BYTES = 1 << 20
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
            with self.path.open("rb") as handle:
                yield from self._cut(self._chunks(handle))
        except OSError as error:
            raise ScaleproofError(
                f"cannot be read: {error.strerror or error}",
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
        member, inside = zlib.decompressobj(wbits=31), False
        while chunk := handle.read(max(1, BLOCK_BYTES // 8)):
            while chunk:
                try:
                    text = member.decompress(chunk)
                except zlib.error as error:
                    self.broken = f"the compressed file is damaged ({error})"
                    return
                inside, chunk = not member.eof, member.unused_data
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
            rest += more
            # The last border in sight; the event after it may not be whole yet.
            cut = None
            for border in BORDER.finditer(rest, max(0, len(rest) - (1 << 16))):
                cut = border
            if cut is None:
                for border in BORDER.finditer(rest):
                    cut = border
            if cut is not None:
                yield b"[" + rest[: cut.start() + 1] + b"]"
                rest = rest[cut.end() :]
        yield from self._last(rest)

    def _last(self, rest: bytes) -> Iterator[bytes]:
        """What is left at the end: the last events and the tail, or a broken end."""
        close = rest.rfind(b"]")
        while close >= 0:
            tail = rest[close + 1 :].strip()
            with contextlib.suppress(ValueError):
                text = b"{" + tail.removeprefix(b",").removesuffix(b"}") + b"}"
                self.meta.update(json.loads(text))
                if not rest[:close].rstrip().endswith((b"}", b"[", b",")) and rest[:close].strip():
                    raise ValueError
                yield b"[" + rest[:close].rstrip().removesuffix(b",") + b"]"
                return
            close = rest.rfind(b"]", 0, close)
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
