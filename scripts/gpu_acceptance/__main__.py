"""Acceptance on the first machine with a GPU: does what was only reasoned about hold there?

    python scripts/gpu_acceptance [--out DIR] [--budget 580] [--resume] [--only first gates] [--dry]

Fifteen minutes on one GPU, what nobody knows yet first: steps with limits of their own. A
step that fails does not stop the others; one that would not fit into the budget, or is cut off by
its end, is named, and ``--resume`` goes on with it. DIR (default: gpu-acceptance) gets three files:
``checks.json`` and ``evidence.tar`` with what was measured, both written after every check, and
``log.txt`` with all that the steps printed. A table is last.
Exit status 1 if anything failed, 10 if anything is left to do.

``--dry`` runs the same on a device that is not there and refuses what a GPU refuses (tests/strict):
that tests this script and the order of every call, and nothing of a GPU's speed or kernels. Clocks,
MIG and MPS are left alone. On a bare machine ``--wheels`` names a folder of wheels (of ``pip
download``, elsewhere).

One GPU cannot show NCCL between ranks, nor whether anything scales. A third slot would run public
scripts (``python benchmarks/experiments/public_scripts.py --only GPU:``), and a fourth one, on two
GPUs, ``pytest suites/ --gpus 2``.
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
#: Step -> seconds that it takes on an H100 or H200, seconds that it may take, and what it is for.
STEPS: Mapping[str, tuple[int, int, str]] = {
    "facts": (15, 40, "versions, NVML; five forked ranks start the driver and leave it"),
    "first": (35, 60, "one timed and one profiled launch: does a figure come out at all?"),
    "suite": (280, 330, "the one-GPU suite to its end, with a verdict; verify and report"),
    "kept": (60, 90, "ranks that stay against fresh ones: may launches share a process?"),
    "cache": (60, 90, "do strategies share compiled graphs, as the forecast counts them?"),
    "frameworks": (
        60,
        120,
        "Lightning's Trainer and DeepSpeed, if wheels were brought along",
    ),
    "warm": (75, 100, "a step after a minute of work, and after two seconds"),
    "nsys": (40, 90, "run --nsys: agents fork under it; how large is its report?"),
    "gates": (90, 150, "strategies x precisions, five codecs train right; margins of all checks"),
    "truth": (80, 110, "step times against a bare loop, in turn; MFU; ceilings of random data"),
    "nccl": (8, 40, "every collective at world 1, read by the harness's own reader"),
    "repeatable": (75, 100, "the same bits twice; which attention runs where that is claimed"),
    "memory": (60, 90, "five real peaks beside the closed form"),
    "profile": (55, 75, "the budget closes; a planted sleep and a planted kernel are found"),
    "broken": (
        40,
        90,
        "a device's assertion, its memory, a kernel that hangs: each is told",
    ),
    "strategies": (100, 240, "every other strategy and codec trains right at world 1"),
    "shared": (150, 300, "two ranks on the one GPU over gloo: all strategies and codecs"),
}
#: In a rehearsal the host computes, beside whatever else it does.
DRY_TIMES = 2
#: Seconds that a process takes to start and to be told of its end.
BETWEEN_S = 3


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_acceptance", description=__doc__, formatter_class=shape)
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"))
    parser.add_argument("--budget", type=float, default=580, metavar="S")
    parser.add_argument("--resume", action="store_true", help="skip what DIR has the checks of")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--dry", action="store_true", help="a strict device instead of a GPU")
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
            left.append(name)  # it was cut off
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
    """Of the steps: wheels that were brought along, or a device that is not there."""
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
    """A step in a process of its own: its result, its seconds, and what is to be told of it."""
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
        problems.insert(0, f"BAD  it broke: {log.read_text().strip().splitlines()[-1]}")
    bad = code or not checks or any(c["ok"] is False for c in checks)
    return "FAIL" if bad else "PASS", seconds, problems


if __name__ == "__main__":
    sys.exit(main())
