"""Protection of the standard streams against closed pipes and full disks.

If a stream breaks, the program continues and discards further output to this stream. The exit
status is the same as in a terminal, for example for ``verify RUN | true``, for
``run CASE | head -1``, or if standard error is closed (``2>&-``). There is one exception: if output
is lost because a disk is full (``> /dev/full``), the program never reports success.
"""

import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, cast


class ClosedPipeWriter:
    """A text stream that discards output after its reader has left or its disk is full."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = False  # whether any output that somebody needs was lost

    def write(self, words: str) -> int:
        """Write text, or discard it if the stream is broken."""
        try:
            return self._stream.write(words)
        except OSError as error:
            self._turn_away(error)
            return len(words)

    def writelines(self, lines: Any) -> None:
        """Write several lines, or discard them if the stream is broken."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flush the stream, or discard its buffer if it is broken."""
        try:
            self._stream.flush()
        except OSError as error:
            self._turn_away(error)

    def _turn_away(self, why: OSError) -> None:
        """Redirect the descriptor to /dev/null, so that later output does not fail.

        This also covers buffered output and the output of child processes. If the disk is full,
        also print a message on standard error. Print no message if the reader closed the pipe.
        """
        if not isinstance(why, BrokenPipeError) and self._stream is not sys.__stderr__:
            self.lost = True
            sys.stderr.write(f"further output is lost: {why.strerror}\n")
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Streams:
    """The standard output and error streams of a program."""

    def __init__(self, streams: Sequence[TextIO | ClosedPipeWriter | None]) -> None:
        self._streams = streams

    @property
    def lost(self) -> bool:
        """Whether output was lost because a disk is full."""
        return any(isinstance(stream, ClosedPipeWriter) and stream.lost for stream in self._streams)


@contextmanager
def kept_open() -> Iterator[Streams]:
    """Protect standard output and error inside the context.

    A stream that was closed before the start writes to /dev/null. Characters that the encoding
    cannot represent are replaced.
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
    """Open /dev/null in place of closed standard streams.

    Otherwise the next file that is opened would get the descriptor of a closed stream, and the
    output of child processes would go into this file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # open() returns the lowest free descriptor, which is ``number``. Child processes must
            # inherit it, because the stream would be closed for them otherwise.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115


def _is_real(stream: TextIO | None) -> bool:
    """Return whether a stream has a descriptor; a captured stream in a test does not."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return False
