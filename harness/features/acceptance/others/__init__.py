"""Others' results: what their tools wrote, read into the document and never judged.

One file here reads one tool's format. It says so in its head (``OTHERS``), and its ``read`` gives
(what, value) of a text, or None where the text is not of that tool.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.base.errors import SpecError
from harness.cases import heads

#: A result that is larger is a log, not a result.
MOST_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class OthersResult:
    """One file of another tool, with the words by which it can be told from any other."""

    tool: str
    file: str
    sha256: str
    lines: tuple[tuple[str, str], ...]


def tools() -> list[str]:
    """The tools whose results can be read."""
    return [module.OTHERS for module in heads.modules("OTHERS")]


def read(path: Path) -> OthersResult:
    """A file of any of the tools; SpecError for one that none of them wrote."""
    try:
        body = path.read_bytes()[:MOST_BYTES]
        text = body.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"cannot be read: {error}", where=str(path), fix="--beside FILE") from None
    for name, lines in _readings(text):
        digest = hashlib.sha256(body).hexdigest()
        return OthersResult(tool=name, file=path.name, sha256=digest, lines=tuple(lines))
    raise SpecError(
        "no tool that is known wrote this",
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
