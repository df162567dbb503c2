"""Ctrl-C, SIGTERM and a terminal that is gone: they end a run, but not while it is written down."""

import functools
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

#: Whether this program was asked to end, whatever became of the exception.
INTERRUPTED = threading.Event()
#: How many calls are under way that may not be interrupted, and whether somebody wanted to.
_writing = 0
_waiting = False


def end_on_signals() -> None:
    """Let SIGTERM, or a terminal that is gone, end a run as Ctrl-C does: cleanly, with what was
    measured kept.

    Python drops what is raised while it clears an object up; so a signal is also written down.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        global _waiting
        INTERRUPTED.set()
        if _writing:
            _waiting = True
        else:
            raise KeyboardInterrupt

    INTERRUPTED.clear()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, interrupt)


def uninterrupted(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which a signal ends after it is done: the chain on disk and what is known in
    memory never differ.
    """

    @functools.wraps(function)
    def whole(*args: P.args, **more: P.kwargs) -> T:
        global _writing, _waiting
        _writing += 1
        try:
            return function(*args, **more)
        finally:
            _writing -= 1
            if _waiting and not _writing:
                _waiting = False
                raise KeyboardInterrupt

    return whole
