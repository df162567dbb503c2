"""Folders whose files are nobody's own: Python's, those of installed packages, this package's."""

import functools
import site
import sysconfig
from pathlib import Path

from harness.base.programs import PACKAGE


@functools.cache
def is_installed(folder: str) -> bool:
    """Whether the files of a folder are nobody's own; links are followed."""
    resolved = Path(folder).resolve()
    return any(resolved.is_relative_to(other) for other in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    python = sysconfig.get_paths()
    paths = [python[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return (PACKAGE, *(Path(path).resolve() for path in paths))
