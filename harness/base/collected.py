"""When garbage is looked for: not while a large document is read."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No look for cycles inside: a document has none, and a look visits all that was read so far.

    So the cost of reading grows with the document alone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
