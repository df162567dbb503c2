"""What a rank ran: digests of the user's files that it loaded, of this package, and versions.

A run may take days, and files are edited meanwhile: two launches are launches of one training only
if they loaded the same.
"""

import functools
import os
import site
import sys
import sysconfig
from pathlib import Path

import torch

from harness.base import digests
from harness.base.programs import PACKAGE


def sources() -> dict[str, str]:
    """Digests of the user's files, by path (relative to the working folder if inside), and the
    versions that a result rests on.
    """
    return {**_versions(), **_user_files()}


def _versions() -> dict[str, str]:
    versions = {"scaleproof": digests.of_package(), "torch": str(torch.__version__)}
    if torch.cuda.is_initialized():
        versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return versions


def _user_files() -> dict[str, str]:
    """Python files of loaded modules that belong neither to Python, nor to what was installed."""
    working_folder = Path.cwd()
    files = {
        str(file)
        for name, module in list(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and not name.startswith(("torch.", "triton."))
    }
    loaded = {Path(file).resolve() for file in files if not _others(file)}
    return {
        str(
            path.relative_to(working_folder) if path.is_relative_to(working_folder) else path
        ): digests.of_file(path)
        for path in sorted(loaded)
        if path.suffix == ".py" and not _is_installed(str(path.parent))
    }


def _others(file: str) -> bool:
    """Whether a file is surely nobody's own: thousands are, in some hundred folders.

    A link may lead elsewhere.
    """
    return _is_installed(os.path.dirname(file)) and not os.path.islink(file)  # noqa: PTH114,PTH120


@functools.cache
def _is_installed(folder: str) -> bool:
    resolved = Path(folder).resolve()
    return any(resolved.is_relative_to(other) for other in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """Folders whose files are nobody's own."""
    python = sysconfig.get_paths()
    paths = [python[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    paths += [*site.getsitepackages(), site.getusersitepackages()]
    return (PACKAGE, *(Path(path).resolve() for path in paths))
