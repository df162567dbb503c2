"""Words before a script that are another program's work: refused, with the form that works.

Wrappers and environment managers can start scaleproof itself, Slurm is an engine, a line of a shell
is typed without the shell.
"""

import itertools
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.base import programs
from harness.base.errors import SpecError
from harness.cases import typed
from harness.cases.typed import RUN

#: Programs that start ranks on other nodes: an engine's work.
_ENGINES = {"srun": "slurm", "sbatch": "slurm"}
#: Programs that start one command behind options of their own.
_WRAPPERS = frozenset({
    "chrt", "ionice", "ltrace", "nice", "nohup", "nsys", "numactl", "perf", "setsid", "stdbuf",
    "strace", "taskset", "time", "timeout",
})  # fmt: skip
#: Programs that run a command in an environment of theirs: ``poetry run train.py``.
_MANAGERS = frozenset({
    "conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv",
})  # fmt: skip
_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
#: ``-c``, also as ``-lc``; and what only a shell understands.
_LINE = re.compile(r"-[a-z]*c$")
_OF_SHELL = re.compile(r"[;&|<>$`\n]")
#: How a program names the Python that runs it, in its first bytes: by its path, by env, or by a
#: shell where the path is long.
_HEAD = 512
_INTERPRETER = re.compile(
    rb"#!\s*(?:\S*/env\s+(?:-S\s*)?)?(\S*python[\d.]*)\b"
    rb"|#!/bin/sh\n'''exec' [\"']?([^\"'\n]*python[\d.]*)"
)
#: The variables by which others than torchrun tell a rank its place, and what they are here.
PLACES: Mapping[str, Mapping[str, str]] = {
    "srun": {
        "SLURM_PROCID": "RANK", "SLURM_NTASKS": "WORLD_SIZE", "SLURM_NPROCS": "WORLD_SIZE",
        "SLURM_LOCALID": "LOCAL_RANK", "SLURM_NODEID": "GROUP_RANK",
    },
    "mpirun": {
        "OMPI_COMM_WORLD_RANK": "RANK", "OMPI_COMM_WORLD_SIZE": "WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK": "LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_NODE_RANK": "LOCAL_RANK",
    },
    "mpiexec": {"PMI_RANK": "RANK", "PMI_SIZE": "WORLD_SIZE", "MPI_LOCALRANKID": "LOCAL_RANK"},
}  # fmt: skip


def refuse(words: Sequence[str]) -> None:
    """SpecError for what stands before a script and is another's work, with the form that works."""
    _refuse_variables(words)
    program = Path(words[0]).name if words else ""
    if program in _ENGINES:
        _refuse_engine(words, program)
    if program in _SHELLS:
        _refuse_line(words)
    if program.endswith(".ipynb"):
        _refuse_notebook(words)
    manages = program in _MANAGERS and list(words[1:2]) == ["run"]
    if (manages or program in _WRAPPERS) and not typed.asks_for_ranks(words):
        _refuse_wrapper(words, f"{program} run" if manages else program)


def of_python(program: Path, words: Sequence[str]) -> bool:
    """Whether a program is a Python file of this environment, as what pip installs is; SpecError
    for one of another environment.
    """
    try:
        with program.open("rb") as file:
            line = _INTERPRETER.match(file.read(_HEAD))
    except OSError:  # it may be started, and not read
        line = None
    if line is None:
        return False
    interpreter = Path((line[1] or line[2]).decode(errors="replace"))
    if interpreter.parent != Path() and interpreter.parent != Path(sys.executable).parent:
        raise SpecError(
            f"{words[0]} is of another Python, {interpreter}",
            where=shlex.join(words),
            expected="scaleproof in that environment",
            fix=f"{RUN} python {words[0]}"
            if "/" in words[0]
            else f"{interpreter} -m pip install scaleproof",
        )
    return True


def unused(path: Path) -> Path:
    """This path, or one like it at which there is nothing yet: a fix overwrites no file."""
    others = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not p.exists())


def behind(words: Sequence[str]) -> int:
    """At which word a command begins that these words start; 0 where none is seen."""
    return next((i for i in range(1, len(words)) if typed.begins_command(words[i:])), 0)


def _refuse_variables(words: Sequence[str]) -> None:
    rest = list(words)
    if rest and rest[0] == "env":
        rest = rest[1:]
    given = [word for word in rest if typed.ASSIGNMENT.match(word)]
    if given and rest[: len(given)] == given:
        script = shlex.join(rest[len(given) :])
        raise SpecError(
            f"{shlex.join(given)} stands before the script: variables are taken from this shell",
            where=shlex.join(words),
            expected="variables before scaleproof",
            fix=f"{shlex.join(given)} {RUN} {script}",
        )


def _refuse_engine(words: Sequence[str], program: str) -> None:
    engine = _ENGINES[program]
    begin = behind(words)
    script = shlex.join(typed.without_interpreter(words[begin:])) if begin else "train.py"
    raise SpecError(
        f"{program} starts ranks itself: that is what --engine {engine} does",
        where=shlex.join(words),
        expected="the script alone",
        fix=f"scaleproof run --script --engine {engine} --nodes 2 --cpus 4 -- {script}",
    )


def _refuse_line(words: Sequence[str]) -> None:
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words[1:]))
    if not any(map(_LINE.match, options)) or len(words) == 1 + len(options):
        return
    line = words[1 + len(options)]
    try:
        inner = shlex.split(line)
    except ValueError:  # a quote that is not closed
        inner = []
    alone = bool(inner) and not _OF_SHELL.search(line)
    raise SpecError(
        f"{words[0]} {shlex.join(options)} runs a line of a shell",
        where=shlex.join(words),
        expected="the words of that line" if alone else "that line in launch.sh, its ranks as $1",
        fix=f"{RUN} {shlex.join(inner if alone else ['bash', 'launch.sh', '{ranks}'])}",
    )


def _refuse_notebook(words: Sequence[str]) -> None:
    name = words[0]
    stem = unused(Path(Path(name).stem + ".py")).stem
    raise SpecError(
        f"{name} is a notebook: ranks run Python files",
        where=shlex.join(words),
        expected="a Python file; or with harness.measure_steps(): in the notebook",
        fix=f"jupyter nbconvert --to script {name} --output-dir . --output {stem}"
        f" && {RUN} {stem}.py",
    )


def _refuse_wrapper(words: Sequence[str], name: str) -> None:
    begin = behind(words)
    if not begin and name != words[0]:  # a module, or a program of that environment
        begin = words.index("-m") if "-m" in words else 2
    if not begin or begin == len(words):
        return
    command = shlex.join(words[begin:])
    where = shlex.join(words)
    if name == words[0] != "time" and programs.which(name) is None:  # time is of the shell
        raise SpecError(
            f"{words[0]} is not installed here",
            where=where,
            expected="a command of this machine",
            fix=f"{RUN} {command}",
        )
    raise SpecError(
        f"{name} starts one process, and ranks are started from here",
        where=where,
        expected=f"{name} before scaleproof",
        fix=f"{shlex.join(words[:begin])} {RUN} {command}",
    )
