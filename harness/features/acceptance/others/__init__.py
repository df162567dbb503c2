"""Read results of other tools into the acceptance document. They are shown but not judged.

Each file in this folder reads the format of one tool. ``OTHERS`` in the file is the tool's name.
The function ``read`` returns (name, value) pairs, or None if the tool did not write the text.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import SpecError
from harness.cases import heads

#: Number of bytes that are read at most. Only log files are larger, and they are not results.
MOST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class OthersResult:
    """One file of another tool, with the values that the document shows."""

    tool: str
    file: str
    sha256: str
    lines: tuple[tuple[str, str], ...]


def tools() -> list[str]:
    """Return the names of the tools whose results can be read."""
    return [module.OTHERS for module in heads.modules("OTHERS")]


def read(path: Path) -> OthersResult:
    """Read a file that one of the tools wrote. Raise SpecError if none of the formats fits."""
    try:
        body = path.read_bytes()[:MOST_BYTES]
        text = body.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", where=str(path), fix="--beside FILE") from None
    for name, lines in _readings(text):
        digest = hashlib.sha256(body).hexdigest()
        return OthersResult(tool=name, file=path.name, sha256=digest, lines=tuple(lines))
    raise SpecError(
        "this file is not in the format of any known tool",
        where=str(path),
        expected=f"a result of {', '.join(tools())}",
        fix="--beside nccl-tests.json",
    )


def _readings(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    for module in heads.modules("OTHERS"):
        try:
            lines = module.read(text)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            continue
        if lines is not None:
            yield module.OTHERS, lines
