"""Digests of files: whether two launches, or two sittings, had the same."""

import functools
import hashlib
from pathlib import Path

from harness.base.programs import PACKAGE

#: Digits that are kept.
DIGITS = 16


def of_bytes(content: bytes) -> str:
    """The first digits of its sha256."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def of_file(path: Path) -> str:
    """The digest of a file's bytes; empty if it is gone."""
    try:
        return of_bytes(path.read_bytes())
    except OSError:
        return ""


@functools.cache
def of_package() -> str:
    """The digest of all Python files of this package, as they were when first asked for here."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    return digest.hexdigest()[:DIGITS]
