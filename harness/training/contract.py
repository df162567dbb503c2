"""Checks that a user's files offer what they must, before anything is run: all that is wrong, at
once.
"""

import inspect
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

#: Functions of each kind of file, with the arguments that they are called with.
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

#: Errors in which a device may tell of what an earlier kernel did.
_LATE = re.compile(r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS|HIP error|NCCL error")
#: A kernel's own line, one for each thread of it.
_ASSERTION = re.compile(r"thread: \[[\d,]+\] Assertion `(.*)` failed")
#: Bytes of a log's end that are searched for one.
_LOG_BYTES = 1 << 20


def problems(kind: str, module: ModuleType, *, compressed: bool = False) -> Iterator[str]:
    """Lists what a model's, a strategy's or a compressor's file lacks, or takes other arguments
    for.

    The strategy of a ``compressed`` case is asked what to expect with the compressor, too.
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
            yield f"{module.__file__}{line}: {signature} is called as {asked}"


def _said(error: BaseException) -> str:
    """An error's own words; those of one that breaks as it is asked are its kind alone.

    What a kernel asserts comes to light in a later call, whose error says nothing of it.
    """
    try:
        words = str(error)
    except Exception as broken:
        return f"its text cannot be had ({type(broken).__name__})"
    asserted = _asserted() if _LATE.search(words) else ""
    return f"a kernel's assertion failed: {asserted}" if asserted else words


def _asserted() -> str:
    """The condition of the last assertion that a kernel has written into this process's log."""
    log = Path("/proc/self/fd/2")
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_BYTES))
        end = file.read().decode(errors="replace")
    return next(reversed(_ASSERTION.findall(end)), "")


def placed(error: BaseException, files: Mapping[str, str]) -> str:
    """An error in one line, with the innermost line of a user's file that it went through."""
    folders = {str(Path(file).parent) for file in files.values() if file.endswith(".py")}
    frames = traceback.extract_tb(error.__traceback__)
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in frames
        if str(Path(frame.filename).parent) in folders
    ]
    return _with_line(error, lines)


def placed_below(error: BaseException, folder: Path) -> str:
    """An error in one line, with the innermost line of a file below a user's folder."""
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
