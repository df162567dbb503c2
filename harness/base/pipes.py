"""Standard streams that may break: what nobody can read is dropped, and the work goes on.

``verify RUN | true``, ``run CASE | head -1``, ``2>&-`` and ``> /dev/full`` end with the status of
what was found, as they would in a terminal; but output that a full disk has lost is no success.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast


class ClosedPipeWriter:
    """A text stream that writes to nowhere from the moment on that it takes no more: its reader has
    left, its disk is full.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False  # whether somebody waits for what could not be written

    def write(self, words: str) -> int:
        try:
            return self._stream.write(words)
        except OSError as error:
            self._turn_away(error)
            return len(words)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._turn_away(error)

    def _turn_away(self, why: OSError) -> None:
        """Point the descriptor at /dev/null, for what is still buffered and for children.

        A reader that left knows why; of a full disk the reader of errors is told.
        """
        if not isinstance(why, BrokenPipeError) and self._stream is not sys.__stderr__:
            self.lost = True
            sys.stderr.write(f"output is lost from here on: {why.strerror}\n")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Streams:
    """The standard output and errors of a program."""

    def __init__(self, streams: Sequence[TextIO | ClosedPipeWriter | None]) -> None:
        self._streams = streams

    @property
    def lost(self) -> bool:
        """Whether output is lost that somebody waits for, because a disk is full."""
        return any(isinstance(stream, ClosedPipeWriter) and stream.lost for stream in self._streams)


@contextmanager
def kept_open() -> Iterator[Streams]:
    """Within, standard output and errors survive whatever becomes of them; one that was closed
    before we began is nowhere. What their encoding cannot hold is replaced.
    """
    _fill()
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    guarded = [ClosedPipeWriter(stream) if _is_real(stream) else stream for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in guarded)
    try:
        yield Streams(guarded)
    finally:
        for stream in guarded:
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def _fill() -> None:
    """Put nowhere in the place of streams that are closed: the next file would get their number,
    and a child's output would go there.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # it gets the lowest number that is free: this one
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115


def _is_real(stream: TextIO | None) -> bool:
    """Whether a stream has a descriptor; a test's has none."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return False
