"""Start a short run in environments that users have, and check that it works or names the cause.

    python benchmarks/experiments/environments.py [--only loopback memory] [--keep DIR]
    python benchmarks/experiments/environments.py --variables      # every variable that torch reads

In each environment one case trains on two ranks: its correctness check and one timed launch. The
run either works (exit status 0 or 5), or its output names the cause in one sentence without a traceback.
Anything else is a defect, and the exit status is 1. The environments with namespaces and control
groups need root. ``--variables`` sets each environment variable that torch's libraries and Python
files name, to ``1`` and to a text that is no number, in groups that are halved if one fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPE = """
from harness import Protocol, ladder

def short(site):
    fast = Protocol(steps=8, cut=2, min_blocks=1, max_blocks=1)
    return [ladder(site.case("ddp/mlp-nano"), (1, 2), protocol=fast)]
"""
#: Seconds after which an environment counts as one that hangs.
LIMIT_S = 120.0
#: Number of variables that are set together. A group that does not work is halved and tried again.
GROUPED = 16
#: Control group with a memory limit, in the hierarchy of version 1.
GROUP = Path("/sys/fs/cgroup/memory/scaleproof-environments")


@dataclass(frozen=True)
class Environment:
    """An environment of a user.

    ``shell`` are shell commands before the run, and ``cause`` is a pattern that the output must
    contain if the run does not work.
    """

    name: str
    cause: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)
    shell: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its exit status, its output, and its wall time in s."""

    status: int
    output: str
    took_s: float

    @property
    def works(self) -> bool:
        """Whether the run measured something. Without a threshold, its exit status is 5."""
        return self.status in (0, 5)

    def defect(self, environment: Environment) -> str:
        """Return what is wrong with the outcome, or an empty string."""
        if "Traceback (most recent call last)" in self.output:
            return "traceback"
        if self.works:
            return ""
        if self.status == 124:
            return f"no end within {LIMIT_S:.0f} s"
        if not re.search(environment.cause or re.escape(environment.name), self.output, re.I):
            return "the cause is not named"
        return ""


SLURM = {
    "SLURM_JOB_ID": "4711", "SLURM_NTASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "3",
    "SLURM_NODELIST": "node[1-2]", "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NNODES": "2",
    "SLURM_CPUS_PER_TASK": "1", "SLURM_MEM_PER_NODE": "100",
}  # fmt: skip
MPI = {
    "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "3",
    "PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3", "MPI_LOCALRANKID": "3",
}  # fmt: skip
TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.9.8.7", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
}  # fmt: skip


def environments(folder: Path) -> Iterator[Environment]:
    """Yield all environments; files that they need are in ``folder``."""
    yield Environment("usual")
    yield Environment("left over from torchrun", variables=TORCHRUN)
    yield Environment("left over from Slurm", variables=SLURM)
    yield Environment("left over from MPI", variables=MPI)
    yield Environment("GLOO_SOCKET_IFNAME", variables={"GLOO_SOCKET_IFNAME": "eth97"})
    yield Environment("TP_SOCKET_IFNAME", variables={"TP_SOCKET_IFNAME": "eth97"})
    yield Environment("PYTHONHASHSEED=0", variables={"PYTHONHASHSEED": "0"})
    yield Environment("PYTHONHASHSEED", variables={"PYTHONHASHSEED": "many"})
    yield Environment("PYTHONOPTIMIZE=2", variables={"PYTHONOPTIMIZE": "2"})
    yield Environment(
        "PYTHONWARNINGS=error", cause="Warning", variables={"PYTHONWARNINGS": "error"}
    )
    yield Environment("PYTHONDEVMODE=1", variables={"PYTHONDEVMODE": "1"})
    yield Environment("PYTHONSAFEPATH=1", variables={"PYTHONSAFEPATH": "1"})
    yield Environment("PYTHONDONTWRITEBYTECODE=1", variables={"PYTHONDONTWRITEBYTECODE": "1"})
    yield Environment("LANG=tr_TR", variables={"LANG": "tr_TR.UTF-8", "LC_ALL": "tr_TR.UTF-8"})
    yield Environment("TZ", variables={"TZ": "Pacific/Kiritimati"})
    yield Environment("TMPDIR", variables={"TMPDIR": str(folder / "absent")})
    yield Environment("HOME", variables={"HOME": "/nonexistent"})
    yield Environment("OMP_NUM_THREADS=64", variables={"OMP_NUM_THREADS": "64"})
    yield Environment("OMP_NUM_THREADS", variables={"OMP_NUM_THREADS": "many"})
    yield Environment("CUDA_VISIBLE_DEVICES=7", variables={"CUDA_VISIBLE_DEVICES": "7"})
    yield Environment("http_proxy", variables={"http_proxy": "http://10.9.8.7:3128"})
    conda = {"CONDA_PREFIX": str(folder), "CONDA_DEFAULT_ENV": "base", "CONDA_SHLVL": "1"}
    yield Environment("conda", variables=conda)
    yield Environment("umask 777", cause="permission|denied", shell="umask 777")
    yield Environment("umask 077", shell="umask 077")
    yield Environment("64 open files", cause="open files|ulimit -n", shell="ulimit -n 64")
    yield Environment(
        "ulimit -v 2 GB", cause="memory|address space|ulimit -v", shell="ulimit -v 2000000"
    )
    yield Environment(
        "ulimit -v 500 MB", cause="memory|address space|ulimit -v", shell="ulimit -v 500000"
    )
    yield Environment("ulimit -f 100 kB", cause="file size|ulimit -f", shell="ulimit -f 100")
    yield Environment("ulimit -t 3 s", cause="CPU time|ulimit -t|SIGXCPU", shell="ulimit -t 3")
    yield Environment("closed stdin", shell="exec 0<&-")
    if os.geteuid() == 0:
        yield from _of_root(folder)


def _of_root(folder: Path) -> Iterator[Environment]:
    """Yield environments with namespaces and control groups."""
    yield Environment("no loopback interface", cause="loopback", shell="UNSHARE -n")
    yield Environment(
        "IPv6 only", cause="IPv4|127.0.0.1|loopback",
        shell="UNSHARE -n; ip link set lo up; ip addr del 127.0.0.1/8 dev lo",
    )  # fmt: skip
    # A remount without "bind" would change the file system for everybody, not this namespace alone.
    yield Environment(
        "read-only root", cause="temporary directory",
        shell=f"UNSHARE -m; mount -t tmpfs none {folder}/results; mount -o remount,bind,ro /",
    )  # fmt: skip
    yield Environment(
        "read-only root with /tmp",
        shell=f"UNSHARE -m; mount -t tmpfs none {folder}/results; mount -o remount,bind,ro /;"
        f" export TMPDIR={folder}/results",
    )  # fmt: skip
    yield Environment(
        "read-only /dev/shm", cause="/dev/shm|shared memory",
        shell="UNSHARE -m; mount -t tmpfs -o ro none /dev/shm",
    )  # fmt: skip
    if GROUP.parent.is_dir():
        for megabytes in (150, 400):
            yield Environment(
                f"memory limit {megabytes} MB", cause="memory|OOM",
                shell=f"mkdir -p {GROUP}; echo {megabytes}M > {GROUP}/memory.limit_in_bytes;"
                f" echo $$ > {GROUP}/cgroup.procs",
            )  # fmt: skip


def variables() -> Iterator[Environment]:
    """Yield an environment for each variable that the installed torch names, and each value."""
    spec = find_spec("torch")
    assert spec is not None and spec.submodule_search_locations, "torch is installed"
    torch = Path(spec.submodule_search_locations[0])
    names: set[str] = set()
    prefix = r"(?:PYTORCH|TORCH|CUDA|GLOO|ATEN|KMP|OMP|NCCL|DNNL|ONEDNN|MKL|KINETO|USE)"
    for library in sorted((torch / "lib").glob("lib*.so")):
        found = re.findall(rf"\0({prefix}_[A-Z0-9_]+)\0".encode(), library.read_bytes())
        names |= {name.decode() for name in found}
    for file in sorted(torch.rglob("*.py")):
        read = r"(?:environ(?:\.get\(|\[|\.setdefault\()|getenv\()\s*[\"']"
        names |= {
            *re.findall(rf"{read}({prefix}[A-Z]*_[A-Z0-9_]+)[\"']", file.read_text(errors="ignore"))
        }
    functions = re.compile(r"MKL_(SPARSE|DOMAIN|[SDZ]?OMAT)|TORCHINDUCTOR|TORCH_LIBRARY")
    for name in sorted(name for name in names if not functions.match(name)):
        for value in ("1", "many"):
            yield Environment(f"{name}={value}", cause=name, variables={name: value})


def grouped(environments: Sequence[Environment]) -> Iterator[list[Environment]]:
    """Yield groups of ``GROUPED`` environments that are tried together, each variable once."""
    for value in (0, 1):
        of_value = environments[value::2]
        for start in range(0, len(of_value), GROUPED):
            yield [*of_value[start : start + GROUPED]]


def joined(group: Sequence[Environment]) -> Environment:
    """Return one environment with the variables of a group."""
    if len(group) == 1:
        return group[0]
    values = {name: value for one in group for name, value in one.variables.items()}
    return Environment(f"{group[0].name} and {len(group) - 1} more", variables=values)


def run(environment: Environment, recipe: Path, results: Path) -> Outcome:
    """Run the recipe in an environment."""
    words = [sys.executable, "-m", "harness", "run", f"{recipe}::short"]
    command = shlex.join([*words, "--cpus", "2", "--no-timeline", "--results", str(results)])
    shell = environment.shell
    before, _, inside = shell.partition(";") if shell.startswith("UNSHARE") else ("", "", shell)
    script = f"set -e; {inside or ':'}; exec {command}"
    if before:
        line = f"unshare {before.removeprefix('UNSHARE ')} bash -c {shlex.quote(script)}"
    else:
        line = f"bash -c {shlex.quote(script)}"
    began = time.monotonic()
    try:
        done = subprocess.run(
            ["timeout", "-k", "10", f"{LIMIT_S:.0f}", "bash", "-c", line],
            env={**os.environ, **environment.variables}, cwd=ROOT, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    finally:
        if GROUP.is_dir():
            GROUP.rmdir()
    return Outcome(done.returncode, done.stdout, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="words of the environments' names")
    parser.add_argument("--variables", action="store_true", help="each variable that torch reads")
    parser.add_argument("--keep", type=Path, help="folder for the outputs")
    args = parser.parse_args()
    defects = 0
    with tempfile.TemporaryDirectory() as name:
        folder = args.keep or Path(name)
        (folder / "results").mkdir(parents=True, exist_ok=True)
        (folder / "results").chmod(0o777)
        folder.chmod(0o777)
        recipe = folder / "short.py"
        recipe.write_text(RECIPE)
        every = variables() if args.variables else environments(folder)
        chosen = [
            environment
            for environment in every
            if not args.only or any(word in environment.name for word in args.only)
        ]
        queue = [*grouped(chosen)] if args.variables else [[environment] for environment in chosen]
        while queue:
            group = queue.pop(0)
            environment = joined(group)
            outcome = run(environment, recipe, folder / "results")
            (folder / f"{re.sub(r'[^A-Za-z0-9]+', '-', environment.name)}.txt").write_text(
                outcome.output
            )
            defect = outcome.defect(environment)
            if len(group) > 1 and (defect or not outcome.works):
                queue[:0] = [group[: len(group) // 2], group[len(group) // 2 :]]
                continue
            defects += bool(defect)
            verdict = defect or ("works" if outcome.works else "cause is named")
            print(
                f"{environment.name:<44} exit {outcome.status:>3} {outcome.took_s:5.1f} s "
                f" {'DEFECT: ' if defect else ''}{verdict}",
                flush=True,
            )
    print(f"{defects} defects")
    return int(defects > 0)


if __name__ == "__main__":
    raise SystemExit(main())
