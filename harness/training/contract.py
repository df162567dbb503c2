"""Checks of a user's files before anything is run.

The checks report all missing functions and wrong signatures together. This file also formats errors
that a user's code raises.
"""

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

#: Functions that each kind of file must have, with the names of their arguments.
_FUNCTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "model": {
        "build": ("size",), "batch": ("ids", "size"), "loss": ("output", "targets"),
        "flops": ("size",),
    },
    "strategy": {
        "expect": ("case", "model", "batching", "facts", "knobs"),
        "build": ("model", "ctx", "knobs"),
    },
    "input": {"feed": ("source", "knobs")},
    "compressor": {"promise": ("shapes", "world_size", "knobs"), "build": ("ctx", "knobs")},
}  # fmt: skip

#: Errors that a device may report late. An earlier kernel, not the call that fails, caused them.
_LATE = re.compile(r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|HIP error|NCCL error")
#: The line that each thread of a kernel prints if its assertion fails.
_ASSERTION = re.compile(r"thread: \[[\d,]+\] Assertion `(.*)` failed")
#: Bytes at the end of a log that are searched for a failed assertion.
_LOG_BYTES = 1 << 20


def problems(kind: str, module: ModuleType, *, compressed: bool = False) -> Iterator[str]:
    """Yield a message for each function that a file lacks or that takes the wrong arguments.

    ``kind`` is a key of ``_FUNCTIONS``. If the case is ``compressed``, ``expect`` of its strategy
    must also take the compressor.
    """
    for name, arguments in _FUNCTIONS[kind].items():
        if compressed and (kind, name) == ("strategy", "expect"):
            arguments = (*arguments, "compressor")
        asked = f"{name}({', '.join(arguments)})"
        function = getattr(module, name, None)
        if not callable(function):
            yield f"{module.__file__} has no {asked}"
            continue
        try:
            inspect.signature(function).bind(*arguments)
        except TypeError:
            code = getattr(function, "__code__", None)
            line = f":{code.co_firstlineno}" if code else ""
            signature = f"{name}{inspect.signature(function)}"
            yield f"{module.__file__}{line}: {signature} cannot be called as {asked}"


def _said(error: BaseException) -> str:
    """Return the text of an error, or a substitute if ``str(error)`` raises an error itself.

    If an assertion in a kernel fails, a later call raises an error that does not mention it. In
    this case the text contains the asserted condition, taken from the log.
    """
    try:
        words = str(error)
    except Exception as broken:
        return f"its message cannot be read: str() raises {type(broken).__name__}"
    asserted = _asserted() if _LATE.search(words) else ""
    return f"a kernel's assertion failed: {asserted}" if asserted else words


def _asserted() -> str:
    """Return the condition of the last kernel assertion that this process logged, or "".

    The log is the file to which standard error is redirected.
    """
    log = Path("/proc/self/fd/2")
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        end = file.read().decode(errors="replace")
    return next(reversed(_ASSERTION.findall(end)), "")


def placed(error: BaseException, files: Mapping[str, str]) -> str:
    """Return an error as one line that ends with the innermost traceback line in a user's file."""
    folders = {str(Path(file).parent) for file in files.values() if file.endswith(".py")}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if str(Path(frame.filename).parent) in folders
    ]
    return _with_line(error, lines)


def placed_below(error: BaseException, folder: Path) -> str:
    """Return an error as one line that ends with the innermost traceback line below ``folder``."""
    top = folder.resolve()
    frames = traceback.extract_tb(error.__traceback__)
    paths = [(Path(frame.filename).resolve(), frame.lineno) for frame in frames]
    lines = [f"{p.relative_to(top)}:{line}" for p, line in paths if p.is_relative_to(top)]
    return _with_line(error, lines)


def _with_line(error: BaseException, lines: Sequence[str]) -> str:
    message = _said(error)
    kind = type(error).__name__
    error_text = f"{kind}: {message}" if message else kind
    return f"{error_text} ({lines[-1]})" if lines else error_text
