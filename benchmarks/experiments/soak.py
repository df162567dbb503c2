"""Kill commands at random moments, and check what they leave behind.

    python benchmarks/experiments/soak.py [--kills 200] [--seed 0] [--only save page]

Each trial starts a command in a separate folder with a user's files. After a random part of its
usual duration, it sends a signal to the program, its agent or a rank. Then it checks:

    record      every run can be read, and what it contains verifies
    resumed     in one of four trials, --resume completes a run that can be resumed
    users       no file of the user was changed, removed or added
    processes   ten seconds later no process of the command is left
    memory      no new file is left in /dev/shm that no process uses
    told        there is no traceback, and the exit status is a documented one

The output is a row for each command. The exit status is 1 if a check failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.analysis.reading import load
from harness.analysis.verify import verify
from harness.base.errors import Exit, ScaleproofError

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "results/samples/ddp-nano"
COMMANDS = {
    "run": "run ddp/mlp-nano/weak --cpus 2 --no-fabric --time-budget 15",
    "save": "run ddp/mlp-nano/weak --cpus 2 --no-fabric --no-timeline --time-budget 8",
    "run --script": "run --script --cpus 2 --no-fabric --time-budget 10 -- train.py",
    "faults recover": "faults recover ddp/mlp-nano --cpus 2 --trials 1",
    "faults goodput": "faults goodput ddp/mlp-nano --cpus 2 --mtbf 3s --steps 400",
    "check nodes": "check nodes --case ddp/mlp-nano --cpus 2",
    "network": "network --cpus 2 --sweeps 2",
    "network pairs": "network pairs --cpus 4 --nodes 4x1 --engine emulated --case ddp/mlp-nano --rounds 1",
    "history nightly": "history nightly --config nightly.toml",
    "compare bisect": "compare bisect ddp/mlp-nano/weak --cpus 2 --good 1 --bad 3 --versions 1,2,3 --no-fabric"
    " --no-timeline --install 'sh install.sh {version} {folder}'",
    "report": f"report {SAMPLE.name}",
    "page": f"report {SAMPLE.name} --every",
    "report site": f"report site {SAMPLE.name} --to kept",
    "accept contract": f"accept contract check retained {SAMPLE.name} --accepted {SAMPLE.name}",
    "accept pack": f"accept pack {SAMPLE.name} --to packed.tar.gz",
    "accept report": f"accept report {SAMPLE.name} --to handed",
    "history baseline": f"history baseline set {SAMPLE.name} --references kept",
    "history add": f"history add {SAMPLE.name} --results kept",
}
#: These commands receive the signal near their end, because they write their output last.
LATE = ("save", "page")
SIGNALS = ("KILL", "TERM", "INT", "HUP")
TARGETS = ("program", "program", "agent", "rank")
MARK = "SOAK"
CHECKPOINT = b"of the user's own" * 1000
SCRIPT = """
import os, torch, torch.distributed as dist
from pathlib import Path
from torch import nn
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(10**6):
    model(torch.randn(16, 64)).square().mean().backward()
    optimizer.step()
    if dist.get_rank() == 0 and step % 20 == 0:
        torch.save(model.state_dict(), "checkpoint.pt")
"""
NIGHT = """
suites = ["test_mine.py"]
arguments = ["--cpus", "2", "--scaling-no-timeline", "--scaling-no-fabric"]
publish = false
wait = "0s"
"""
INSTALL = f"""
mkdir -p "$2/bin"
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > "$2/bin/python"
chmod +x "$2/bin/python"
"""
SUITE = """
from harness import Protocol, ladder, scaling
FAST = Protocol(steps=14, cut=2, min_blocks=2, max_blocks=2)
def weak(site):
    return [ladder(site.case("ddp/mlp-nano", "weak"), (1, 2), protocol=FAST)]
@scaling(weak)
def test_mine(verdict):
    pass
"""


@dataclass
class Seen:
    """The results of all trials of one command."""

    trials: int = 0
    runs: int = 0
    resumed: int = 0
    problems: list[str] = field(default_factory=list)


def users_files(folder: Path) -> dict[str, str]:
    """Return digests of the user's files."""
    ours = ("results", "kept", "handed", "packed.tar.gz")
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and p.relative_to(folder).parts[0] not in ours
        if not {".git", ".pytest_cache", "__pycache__"} & {*p.parts} and "report.html" not in p.name
    }


def started_by(mark: str) -> Iterator[tuple[int, str]]:
    """Return (pid, command line) of the processes of a trial that are alive."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() not in (entry / "environ").read_bytes():
                continue
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if state != "Z":
            yield int(entry.name), words


def target_of(kind: str, mark: str, program: int, draw: random.Random) -> int:
    """Return the pid that receives the signal: the program, if there is no other such process yet."""
    agents = [pid for pid, words in started_by(mark) if "harness.training" in words]
    parents = {pid: int(_stat(pid)[1]) for pid in agents}
    ranks = sorted(pid for pid in agents if parents[pid] in agents)
    if kind == "rank" and ranks:
        return draw.choice(ranks)
    if kind == "agent" and (firsts := [pid for pid in agents if pid not in ranks]):
        return draw.choice(firsts)
    return program


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", "0"]


def shared_memory() -> set[str]:
    mapped = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            mapped |= {
                line.split(None, 5)[5].strip()
                for line in maps.read_text().splitlines()
                if len(line.split(None, 5)) > 5
            }
        except OSError:
            continue
    return {str(p) for p in Path("/dev/shm").glob("*") if str(p) not in mapped}


def prepare(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "checkpoint.pt").write_bytes(CHECKPOINT)
    (folder / "test_mine.py").write_text(SUITE)
    (folder / "nightly.toml").write_text(NIGHT)
    (folder / "install.sh").write_text(INSTALL)
    (folder / ".gitignore").write_text("results/\nkept/\nhanded/\n")
    shutil.copytree(SAMPLE, folder / SAMPLE.name, ignore=shutil.ignore_patterns("*report*"))
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def undisturbed(verb: str, folder: Path) -> float:
    """Return the duration (s) of a command without a signal."""
    prepare(folder)
    command = [sys.executable, "-m", "harness", *shlex.split(COMMANDS[verb])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lasts_s = time.monotonic() - began
    print(f"     {verb:<14} status {done.returncode}, {lasts_s:.1f} s", file=sys.stderr, flush=True)
    alike = verb == "compare bisect"  # the versions do not differ, which the command reports
    if done.returncode == Exit.INTERNAL or (done.returncode == Exit.USAGE and not alike):
        raise SystemExit(done.stdout + done.stderr)
    return lasts_s


def trial(verb: str, lasts_s: float, draw: random.Random, folder: Path, seen: Seen) -> str:
    """Run one command and send it a signal; return a short description."""
    words = COMMANDS[verb]
    name, kind = draw.choice(SIGNALS), draw.choice(TARGETS)
    if name == "HUP" and kind != "program":
        name = "KILL"
    after_s = draw.uniform(0.8 * lasts_s if verb in LATE else 0.2, lasts_s)
    mark = f"{os.getpid()}-{draw.randrange(10**9)}"
    prepare(folder)
    users, shm = users_files(folder), shared_memory()
    environment = {**os.environ, MARK: mark, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "harness", *shlex.split(words)]
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        time.sleep(after_s)  # a random moment
        struck = ""
        if process.poll() is None:
            pid = target_of(kind, mark, process.pid, draw)
            with_whom = "program" if pid == process.pid else kind
            struck = f"{name} to {with_whom} after {after_s:.1f} s"
            try:
                os.kill(pid, getattr(signal, f"SIG{name}"))
            except ProcessLookupError:
                struck = ""
        try:
            output, _ = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            seen.problems.append(f"{struck}: did not end within 300 s")
    look(folder, process.returncode, output, mark, struck, seen)
    if users_files(folder) != users:
        now = users_files(folder)
        which = [p for p in users.keys() | now.keys() if users.get(p) != now.get(p)]
        seen.problems.append(f"{struck}: the user's {', '.join(sorted(which)[:3])} changed")
    if left := shared_memory() - shm:
        seen.problems.append(f"{struck}: {', '.join(sorted(left)[:2])} is left in /dev/shm")
    if verb.startswith("run") and draw.random() < 0.25:
        resume(folder, environment, seen)
    return struck or "ended before"


def look(folder: Path, status: int, message: str, mark: str, struck: str, seen: Seen) -> None:
    known = {*map(int, Exit)} - {Exit.INTERNAL} | {-getattr(signal, f"SIG{n}") for n in SIGNALS}
    if "Traceback" in message or status not in known:
        seen.problems.append(f"{struck}: status {status}: {message[-400:]}")
    deadline = time.monotonic() + 10
    while (left := list(started_by(mark))) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        seen.problems.append(f"{struck}: {len(left)} processes are left: {left[0][1][:80]}")
    for run in folder.glob("results/runs/*/*"):
        seen.runs += 1
        if not (run / "chain.jsonl").is_file() and not (run / "record.json").is_file():
            if any(run.rglob("rank*.npz")):
                seen.problems.append(f"{struck}: {run.name} has launches and no record")
            continue
        try:
            if differences := verify(load(run), run).differences:
                seen.problems.append(f"{struck}: {run.name}: {differences[0]}")
        except ScaleproofError as error:
            seen.problems.append(f"{struck}: {run.name} cannot be read: {error.what}")


def resume(folder: Path, environment: dict[str, str], seen: Seen) -> None:
    runs = [r for r in folder.glob("results/runs/*/*") if (r / "record.json").is_file()]
    if not runs or load(runs[0]).complete:
        return
    command = [sys.executable, "-m", "harness", "run", "--resume", str(runs[0])]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    whole = load(runs[0]).complete and not verify(load(runs[0]), runs[0]).differences
    seen.resumed += 1
    if done.returncode in (Exit.USAGE, Exit.INTERNAL) or not whole:
        seen.problems.append(f"--resume: status {done.returncode}: {done.stderr[-300:]}")


def main(kills: int, seed: int, verbs: Sequence[str]) -> int:
    draw = random.Random(seed)
    seen = {verb: Seen() for verb in verbs}
    struck: Counter[str] = Counter()
    lasts_s = {}
    for verb in verbs:
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            lasts_s[verb] = undisturbed(verb, Path(folder))
    for number in range(kills):
        verb = verbs[number % len(verbs)]
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            what = trial(verb, lasts_s[verb], draw, Path(folder), seen[verb])
        seen[verb].trials += 1
        struck[verb] += what != "ended before"
        print(f"{number + 1:4} {verb:<14} {what}", file=sys.stderr, flush=True)
    print("| verb | trials | struck | runs read | resumed | problems |")
    print("|---|---|---|---|---|---|")
    for verb, observed in seen.items():
        numbers = f"{observed.trials} | {struck[verb]} | {observed.runs} | {observed.resumed}"
        print(f"| {verb} | {numbers} | {len(observed.problems)} |")
    problems = [f"{verb}: {text}" for verb, observed in seen.items() for text in observed.problems]
    print("\n".join(problems))
    return int(bool(problems))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=COMMANDS, default=list(COMMANDS))
    asked = parser.parse_args()
    sys.exit(main(asked.kills, asked.seed, asked.only))
