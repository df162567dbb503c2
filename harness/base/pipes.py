"""Standard streams whose reader may leave: what nobody reads is dropped, and the work goes on.

``verify RUN | true`` and ``run CASE | head -1`` end with the status of what was found, as they
would in a terminal.
"""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class Deserted:
    """A text stream that writes to nowhere from the moment on that its reader has left."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, words: str) -> int:
        try:
            return self._stream.write(words)
        except BrokenPipeError:
            self._turn_away()
            return len(words)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._turn_away()

    def _turn_away(self) -> None:
        """From now on the descriptor is that of nowhere: of what is buffered, and of children."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def kept_open() -> Iterator[None]:
    """Within, standard output and errors survive a reader that leaves."""
    before = sys.stdout, sys.stderr
    guarded = [Deserted(stream) if _is_real(stream) else stream for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in guarded)
    try:
        yield
    finally:
        for stream in guarded:
            if stream is not None:
                stream.flush()
        sys.stdout, sys.stderr = before


def _is_real(stream: TextIO | None) -> bool:
    """Whether a stream has a descriptor; a test's has none."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (io.UnsupportedOperation, AttributeError, ValueError):
        return False
