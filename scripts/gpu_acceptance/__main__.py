"""Acceptance test for a machine with one GPU: check there what has only been tested on CPUs.

    python scripts/gpu_acceptance [--out DIR] [--budget 580] [--resume] [--only first gates] [--dry]

The test takes fifteen minutes and consists of steps with separate time limits; the steps whose
results are least certain come first. A failed step does not stop the others. Steps that do not fit
into the budget, or are interrupted by its end, are listed, and ``--resume`` continues with them.
Three files are written to DIR (default: gpu-acceptance): ``checks.json`` and ``evidence.tar``
contain what was measured and are updated after every check, and ``log.txt`` contains all output of
the steps. At the end a table is printed.
Exit status 1 if anything failed, 10 if anything is left to do.

``--dry`` runs the same steps on a simulated device that refuses what a GPU refuses (tests/strict).
That tests this script and the order of every call, but nothing of a GPU's speed or kernels. The
settings of clocks, MIG and MPS are not changed. For a machine without network access, ``--wheels``
names a folder with wheels that ``pip download`` fetched elsewhere.

One GPU cannot test NCCL between ranks, nor scaling. With more time, run the public scripts
(``python benchmarks/experiments/public_scripts.py --only GPU:``), and on two GPUs
``pytest suites/ --gpus 2``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Step -> its usual seconds on an H100 or H200, its limit in seconds, and what it tests.
STEPS: Mapping[str, tuple[int, int, str]] = {
    "facts": (15, 40, "versions, NVML; five forked ranks start and release the driver"),
    "first": (35, 60, "one timed and one profiled launch produce results"),
    "suite": (280, 330, "the one-GPU suite runs to its verdict; verify and report read it"),
    "kept": (60, 90, "reused rank processes are as fast as fresh ones"),
    "cache": (60, 90, "strategies share compiled graphs, as the time estimate assumes"),
    "frameworks": (
        60,
        120,
        "Lightning's Trainer and DeepSpeed, if they are installed",
    ),
    "warm": (75, 100, "step time after two seconds and after a minute of work"),
    "nsys": (40, 90, "run --nsys: agents fork under nsys; size of its report"),
    "gates": (90, 150, "strategies x precisions and five compressors are correct; all margins"),
    "truth": (80, 110, "step times against a bare loop, in turn; MFU; peak rates of random data"),
    "nccl": (8, 40, "every collective at world size 1 is counted with its bytes"),
    "repeatable": (75, 100, "identical bits in two launches; the attention kernel used for them"),
    "memory": (60, 90, "five measured memory peaks against the closed form"),
    "profile": (55, 75, "the time budget adds up; an injected sleep and kernel are found"),
    "broken": (
        40,
        90,
        "a device assertion, an out-of-memory error and a hanging kernel are reported",
    ),
    "strategies": (100, 240, "every other strategy and compressor is correct at world size 1"),
    "shared": (150, 300, "two ranks on the one GPU over gloo: all strategies and compressors"),
}
#: Factor of all time limits with ``--dry``, because the host computes, and may be busy.
DRY_TIMES = 2
#: Seconds that starting a step's process and noticing its end take.
BETWEEN_S = 3


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_acceptance", description=__doc__, formatter_class=shape)
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"))
    parser.add_argument("--budget", type=float, default=580, metavar="S")
    parser.add_argument("--resume", action="store_true", help="skip steps with results in DIR")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--dry", action="store_true", help="use a simulated device, not a GPU")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if not asked.resume:
        for name in ("checks.json", "evidence.tar", "log.txt"):
            (out / name).unlink(missing_ok=True)
    until = time.monotonic() + asked.budget
    environment = _environment(asked, out)
    rows, left = [], []
    for name in asked.only:
        usual_s, limit_s, what = STEPS[name]
        limit_s *= DRY_TIMES if asked.dry else 1
        if _of(out, name).get("result"):
            continue
        left_s = until - time.monotonic() - BETWEEN_S
        if left_s < usual_s:
            left.append(name)
            continue
        print(f" {name}: {what}", flush=True)
        row = (name, *_run(name, out, min(limit_s, left_s), environment, asked.dry))
        if left_s < limit_s and not _of(out, name).get("result"):
            left.append(name)  # the end of the budget interrupted it
        else:
            rows.append(row)
    print(f"\n {'step':12}{'result':8}{'s':>5}  failed or not checked")
    for name, result, seconds, sentence in rows:
        print(f" {name:12}{result:8}{seconds:5.0f}  {sentence[0] if sentence else ''}")
        for line in sentence[1:]:
            print(f" {'':25}  {line}")
    if left:
        print(f"\n no time was left for {', '.join(left)}")
        print(f" try       python scripts/gpu_acceptance --resume --out {asked.out}")
    print(f"\n evidence  {out}/checks.json, evidence.tar, log.txt")
    if any(result != "PASS" for _, result, _, _ in rows):
        return 1
    return 10 if left else 0


def _environment(asked: argparse.Namespace, out: Path) -> dict[str, str]:
    """Return the environment of the steps, with the given wheels or the simulated device."""
    here = dict(os.environ)
    if asked.dry:
        sys.path.insert(0, str(ROOT / "tests"))
        from strict.machine import environment

        folder = Path(tempfile.mkdtemp(prefix="scaleproof-nvml-"))
        here = dict(environment(folder, 1, STRICT_MEMORY=str(2 << 30)))
    paths = [str(ROOT), here.get("PYTHONPATH", "")]
    if asked.wheels:
        target = ["--target", str(out / "packages"), "--no-index", "--find-links"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", *target, str(asked.wheels)]
        names = ["msgspec", "nvtx", "nvidia-ml-py", "jinja2", "scipy", "pandas", "pytest"]
        subprocess.run([*command, *names, "pytest-benchmark", "asv", "argcomplete"], check=True)
        paths.insert(1, str(out / "packages"))
    return {**here, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def _of(out: Path, name: str) -> dict[str, Any]:
    file = out / "checks.json"
    known = json.loads(file.read_text()) if file.is_file() else {}
    return dict(known.get(name, {}))


def _run(
    name: str, out: Path, limit_s: float, environment: Mapping[str, str], dry: bool
) -> tuple[str, float, list[str]]:
    """Run a step in a separate process; return its result, its seconds and its problems."""
    command = [sys.executable, str(HERE / "steps.py"), name, str(out), *(["--dry"] if dry else [])]
    began, late, code = time.monotonic(), False, 1
    log = out / "log.txt"
    with log.open("a") as file:
        print(f"== {name}", file=file, flush=True)
        try:
            code = subprocess.run(
                command, env=dict(environment), cwd=ROOT, timeout=limit_s, check=False,
                stdout=file, stderr=subprocess.STDOUT,
            ).returncode  # fmt: skip
        except subprocess.TimeoutExpired:
            late = True
    seconds = time.monotonic() - began
    checks = _of(out, name).get("checks", [])
    problems = [f"BAD  {c['what']}: {c['seen']}" for c in checks if c["ok"] is False]
    problems += [f"not checked: {c['what']}" for c in checks if c["ok"] is None]
    if late:
        problems.insert(0, f"BAD  it took longer than {limit_s:.0f} s")
    elif code:
        problems.insert(0, f"BAD  it failed: {log.read_text().strip().splitlines()[-1]}")
    bad = code or not checks or any(c["ok"] is False for c in checks)
    return "FAIL" if bad else "PASS", seconds, problems


if __name__ == "__main__":
    sys.exit(main())
