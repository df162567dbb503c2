"""What people type before their script: interpreters and launchers, each understood or refused.

A refusal says the form that works. torchrun's usual forms name a number of ranks and a port: on
every rung they are the rung's, and one that is free.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from harness.base.errors import SpecError

RUN = "scaleproof run --script --cpus 2 --"
#: ``python``, ``python3``, ``python3.11``.
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
#: Options of the interpreter that change nothing of what a script does in a rank.
_HARMLESS = frozenset({"-u", "-B", "-q"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: torch's own launcher, as a module.
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
#: Its options that name what a rung decides: the number of ranks, and where they meet.
_DECIDED = {
    "--nproc-per-node": "{ranks}",
    "--nproc_per_node": "{ranks}",
    "--master-port": "{port}",
    "--master_port": "{port}",
}
#: Programs that start ranks on other nodes: an engine's work.
_ENGINES = {"srun": "slurm", "sbatch": "slurm"}


def refuse_foreign(words: Sequence[str]) -> None:
    """SpecError for what stands before a script and is another's work, with the form that works."""
    rest = list(words)
    if rest and rest[0] == "env":
        rest = rest[1:]
    given = [w for w in rest if _ASSIGNMENT.match(w)]
    if given and rest[: len(given)] == given:
        script = shlex.join(rest[len(given) :])
        raise SpecError(
            f"{shlex.join(given)} stands before the script: variables are taken from this shell",
            where=shlex.join(words),
            expected="variables before scaleproof",
            fix=f"{shlex.join(given)} {RUN} {script}",
        )
    program = Path(words[0]).name if words else ""
    if program in _ENGINES:
        engine = _ENGINES[program]
        raise SpecError(
            f"{program} starts ranks itself: that is what --engine {engine} does",
            where=shlex.join(words),
            expected="the script alone",
            fix=f"scaleproof run --script --engine {engine} --nodes 2 --cpus 4 -- train.py",
        )
    if words[:2] == ["uv", "run"] and not _asks_for_ranks(words):
        raise SpecError(
            "uv run starts one process",
            where=shlex.join(words),
            expected="scaleproof in that environment",
            fix=f"uv run {RUN} {shlex.join(words[2:])}",
        )


def without_interpreter(words: Sequence[str]) -> Sequence[str]:
    """The words behind ``python -u``; SpecError for options that ranks could not keep."""
    if not words or not _PYTHON.match(Path(words[0]).name):
        return words
    rest = list(words[1:])
    while rest and rest[0] in _HARMLESS:
        rest = rest[1:]
    if rest and rest[0].startswith("-") and rest[0] != "-m":
        raise SpecError(
            f"ranks cannot keep python's option {rest[0]}",
            where=shlex.join(words),
            expected="train.py or -m package.train, without options of the interpreter",
            fix=f"{RUN} {shlex.join(rest[1:])}",
        )
    return rest


def is_torchrun(words: Sequence[str]) -> bool:
    """Whether it is torch's launcher, by name or as a module."""
    if words and Path(words[0]).name == "torchrun":
        return True
    rest = without_interpreter(words)
    return rest is not words and len(rest) > 1 and rest[0] == "-m" and rest[1] in _TORCHRUN


def for_every_rung(words: Sequence[str]) -> list[str]:
    """Torchrun's words with the rung's number of ranks and a free port where they name fixed ones.

    Without a number of ranks it is put in.
    """
    begin = 1 if Path(words[0]).name == "torchrun" else list(words).index("-m") + 2
    end = next((i for i in range(begin, len(words)) if _begins_script(words[i])), len(words))
    options = list(words[begin:end])
    decided: list[str] = []
    while options:
        word = options.pop(0)
        name, equals, value = word.partition("=")
        if name not in _DECIDED:
            decided.append(word)
            continue
        if not equals and options:
            value = options.pop(0)
        decided.append(f"{name}={value if '{' in value else _DECIDED[name]}")
    whole = [*words[:begin], *decided, *words[end:]]
    if not _asks_for_ranks(whole):
        whole.insert(begin, "--nproc-per-node={ranks}")
    return whole


def _begins_script(word: str) -> bool:
    return word == "-m" or word.endswith((".py", ".sh"))


def _asks_for_ranks(words: Sequence[str]) -> bool:
    return any("{ranks}" in w or "{world}" in w for w in words)


def script_of(words: Sequence[str]) -> tuple[str, bool] | None:
    """What a launcher starts: a Python file, a module (True) or a shell script; None if unseen."""
    for number, word in enumerate(words[1:], 1):
        if word.endswith(".py"):
            return word, False
        if word == "-m" and number + 1 < len(words) and words[number + 1] not in _TORCHRUN:
            return words[number + 1], True
    shell = next((w for w in words if w.endswith(".sh")), None)
    return None if shell is None else (shell, False)
