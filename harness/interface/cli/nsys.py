"""``run --nsys``: the same command under NVIDIA Nsight Systems, ranks and their spans included.

System calls and call stacks are not recorded: both slow down the steps that are measured. CUDA
graphs are recorded kernel by kernel. A run of many worlds is gigabytes: take one case.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from harness.base import programs
from harness.base.errors import ScaleproofError


def become(arguments: Sequence[str], results: Path) -> NoReturn:
    """Replace this process by nsys running it; the report lies in ``results``."""
    nsys = shutil.which("nsys")
    if nsys is None:
        raise ScaleproofError(
            "--nsys: there is no nsys on the PATH",
            expected="NVIDIA Nsight Systems",
            fix="run without --nsys: scaleproof captures a timeline anyway",
        )
    results.mkdir(parents=True, exist_ok=True)
    rest = [argument for argument in arguments if argument != "--nsys"]
    command = [
        nsys,
        "profile",
        "--trace=nvtx,cuda",
        "--cuda-graph-trace=node",
        "--sample=none",
        "--cpuctxsw=none",
        "--trace-fork-before-exec=true",
        f"--output={results / 'scaleproof-%p'}",
        sys.executable,
        *programs.MODULE,
        "harness",
        *rest,
    ]
    sys.stdout.flush()
    os.execv(nsys, command)
