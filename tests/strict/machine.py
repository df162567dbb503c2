"""A machine with simulated GPUs: NVML by a compiled library, torch by the strict device.

``environment(folder)`` is the environment in which a program sees these GPUs;
``python -m tests.strict.machine FOLDER`` prints it for a shell.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent


def library(folder: Path, *flags: str) -> Path:
    """Compile the simulated NVML library, and return its folder."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "a C compiler makes the stand-in for NVML"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "libnvidia-ml.so.1"
    if not made.is_file():
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *flags]
        subprocess.run([*command, "-o", str(made), str(HERE / "nvml.c")], check=True)
    return folder


def environment(folder: Path, num_gpus: int = 2, **more: str) -> Mapping[str, str]:
    """Return a process's environment on such a machine; ``more`` are the library's variables."""
    path = os.pathsep.join(p for p in (str(HERE / "site"), os.environ.get("PYTHONPATH", "")) if p)
    libraries = os.pathsep.join(
        p for p in (str(library(folder)), os.environ.get("LD_LIBRARY_PATH", "")) if p
    )
    kept = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return {
        **kept, "PYTHONPATH": path, "LD_LIBRARY_PATH": libraries, "STRICT_GPUS": str(num_gpus), **more,
    }  # fmt: skip


if __name__ == "__main__":
    here = environment(Path(sys.argv[1]))
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "STRICT_GPUS"):
        print(f"export {name}={shlex.quote(here[name])}")
