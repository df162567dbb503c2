"""Check scaleproof itself on a machine with a GPU.

    python scripts/gpu_acceptance [--out DIR] [--budget 580] [--resume] [--only first gates] [--dry]

The steps take about fifteen minutes on one GPU. Steps with uncertain results come first, and
each step has its own time limit. A step that fails does not stop the others. Steps that do not fit
into the budget, or that its end interrupts, are listed; ``--resume`` runs them. The folder DIR
(default: gpu-acceptance) receives three files: ``checks.json`` has the checks, ``evidence.tar`` the
measurements, and ``log.txt`` the output of the steps. The first two are written after every check.
At the end a table is printed. The exit status is 1 if a check failed, and 10 if steps are left.

``--dry`` runs the same steps on a simulated device, which refuses the same calls as a GPU
(tests/strict). This tests the script and the order of its calls, but neither speed nor kernels. The
script does not change clocks, MIG or MPS. On a machine without packages, ``--wheels`` names a
folder of wheels that ``pip download`` made on another machine.

One GPU cannot test NCCL between ranks or scaling. Public scripts are tested on a GPU by ``python
benchmarks/experiments/public_scripts.py --only GPU:``, and two GPUs by ``pytest suites/ --gpus 2``.
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
#: For each step: the seconds that it takes on an H100 or H200, its time limit in seconds, and its
#: purpose.
STEPS: Mapping[str, tuple[int, int, str]] = {
    "facts": (15, 40, "versions and NVML; five forked ranks start the driver and exit"),
    "first": (35, 60, "one timed and one profiled launch return measurements"),
    "suite": (280, 330, "the suite for one GPU reaches a verdict; then verify and report"),
    "kept": (60, 90, "several trainings in one process are as fast as in fresh processes"),
    "cache": (60, 90, "strategies share compiled graphs, as the estimate of run time assumes"),
    "frameworks": (
        60,
        120,
        "Lightning's Trainer and DeepSpeed, if their wheels are installed",
    ),
    "warm": (75, 100, "step time after two seconds and after a minute of load"),
    "nsys": (40, 90, "run --nsys: agents fork under Nsight Systems; the size of its report"),
    "gates": (90, 150, "strategies x precisions and five compressors train correctly; margins"),
    "truth": (80, 110, "step times compared with a plain loop; MFU; ceilings with random data"),
    "nccl": (8, 40, "every collective at world size 1 is recorded with its bytes"),
    "repeatable": (75, 100, "two launches compute identical bits; attention kernel in use"),
    "memory": (60, 90, "five measured peaks of memory, relative to the closed form"),
    "profile": (55, 75, "terms sum to the step; an injected sleep and kernel are found"),
    "broken": (
        40,
        90,
        "device assertion, out of memory and hanging kernel are reported as such",
    ),
    "strategies": (
        100,
        240,
        "all other strategies and compressors train correctly at world size 1",
    ),
    "shared": (150, 300, "two ranks share the GPU over gloo: all strategies and compressors"),
}
#: Factor for the time limits with ``--dry``, because the host computes what a GPU would.
DRY_TIMES = 2
#: Seconds reserved for the start of a process and the detection of its end.
BETWEEN_S = 3


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_acceptance", description=__doc__, formatter_class=shape)
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"))
    parser.add_argument("--budget", type=float, default=580, metavar="S")
    parser.add_argument("--resume", action="store_true", help="skip steps that DIR has results of")
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--dry", action="store_true", help="simulate the device")
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
    """Return the environment of the steps, with installed wheels and with the simulated device."""
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
    """Run a step in a separate process; return its result, its duration (s) and its problems."""
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
