"""Acceptance on the first machine with a GPU: does what was only reasoned about hold there?

    python scripts/gpu_acceptance [--out DIR] [--only gates timeline] [--wheels DIR] [--dry]

Nine steps of at most ten minutes each, for one GPU. A step that fails does not stop the others.
The folder DIR (default: gpu-acceptance) keeps every output and every figure; the table comes last.
Exit status 1 if anything failed. ``--dry`` runs the same steps on two CPU ranks: that tests this
script, and nothing of a GPU. On a bare machine ``--wheels`` names a folder of wheels (of ``pip
download``, elsewhere); they go into DIR/packages. Clocks, MIG and MPS are left alone.

What one GPU cannot tell: anything of NCCL between ranks, and whether anything scales.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
#: Seconds for which a step may run.
LIMIT_S = 600
STEPS = {
    "facts": "device, versions, doctor; how long NVML takes to answer",
    "fork": "twenty forked ranks start, compute and leave the device's memory idle",
    "gates": "every strategy and precision trains right, alone and sharing the GPU",
    "recorder": "the flight recorder's own words for every collective",
    "truth": "step times against a bare loop with events; clocks over a minute",
    "memory": "real peaks against the closed form; what cannot fit is skipped",
    "timeline": "budgets close; a planted sleep and a planted kernel are found",
    "faults": "who broke it, with ranks that share the GPU; nothing is left",
    "suite": "pytest suites/ --gpus 1 is not green; verify, report and timeline offline",
}


def main() -> int:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_acceptance", description=__doc__, formatter_class=shape)
    parser.add_argument("--out", type=Path, default=Path("gpu-acceptance"))
    parser.add_argument("--only", nargs="+", choices=STEPS, default=list(STEPS), metavar="STEP")
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--dry", action="store_true", help="two CPU ranks instead of a GPU")
    asked = parser.parse_args()
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if asked.wheels:
        target = ["--target", str(out / "packages"), "--no-index", "--find-links"]
        command = [sys.executable, "-m", "pip", "install", "--quiet", *target, str(asked.wheels)]
        names = ["msgspec", "nvtx", "nvidia-ml-py", "jinja2", "scipy", "pandas", "pytest"]
        subprocess.run([*command, *names, "pytest-benchmark", "asv"], check=True)
    rows = [_run(name, out, asked.dry) for name in asked.only]
    print(f"\n {'step':10}{'result':8}{'s':>5}  failed or not checked")
    for name, result, seconds, told in rows:
        print(f" {name:10}{result:8}{seconds:5.0f}  {told[0] if told else ''}")
        for line in told[1:]:
            print(f" {'':23}  {line}")
    print(f"\n evidence: {out}")
    return int(any(result != "PASS" for _, result, _, _ in rows))


def _run(name: str, out: Path, dry: bool) -> tuple[str, str, float, list[str]]:
    """A step in a process of its own: its result, and what is to be told of it."""
    print(f" {name}: {STEPS[name]}", flush=True)
    folder = out / name
    folder.mkdir(exist_ok=True)
    (folder / "checks.json").unlink(missing_ok=True)
    paths = (str(ROOT), str(out / "packages"), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    command = [
        sys.executable,
        str(HERE / "steps.py"),
        name,
        str(folder),
        *(["--dry"] if dry else []),
    ]
    began, late = time.monotonic(), False
    with (folder / "output.log").open("w") as log:
        try:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment, cwd=ROOT,
                                  timeout=LIMIT_S, check=False)  # fmt: skip
            code = done.returncode
        except subprocess.TimeoutExpired:
            code, late = 1, True
    seconds = time.monotonic() - began
    file = folder / "checks.json"
    checks = json.loads(file.read_text()) if file.is_file() else []
    told = [f"BAD  {c['what']}: {c['seen']}" for c in checks if c["ok"] is False]
    told += [f"not checked: {c['what']}" for c in checks if c["ok"] is None]
    if late:
        told.insert(0, f"BAD  it took longer than {LIMIT_S} s")
    elif code:
        told.insert(0, f"BAD  it broke: {folder / 'output.log'}")
    bad = code or not checks or any(c["ok"] is False for c in checks)
    return name, "FAIL" if bad else "PASS", seconds, told


if __name__ == "__main__":
    sys.exit(main())
