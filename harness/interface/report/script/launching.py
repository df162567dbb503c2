"""Propose commands for scripts whose ranks did not start, from the errors and the script's file."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.cases import typed
from harness.cases.typed import ON_CPU, ONE_PROCESS
from harness.record import RunRecord

#: An error of a script that lacks the option which torch's older launcher passes.
_LOCAL_RANK = re.compile(r"unrecognized arguments: --local[-_]rank")
_OLDER, _NEWER = "torch.distributed.launch", "torch.distributed.run"
#: An error of a script that starts ranks without knowing how many, and an option in its file that
#: sets the number.
_UNTOLD = "starts ranks of its own: the script is its own launcher, and no word"
_OPTION = re.compile(
    r"""["'](--[\w-]*(?:world|nproc|num[-_]proc|ranks|gpus|devices|processes)[\w-]*)["']"""
)
#: An error of a script that reads a variable which torchrun does not set.
_VARIABLE = re.compile(r"KeyError: ['\"](\w+)['\"]")


def otherwise(run: RunRecord) -> Iterator[str]:
    """Yield commands to try instead, each with its reason."""
    causes = [launch.cause.message for launch in run.launches if launch.cause is not None]
    argv = run.settings.argv
    if not causes or "--" not in argv:
        return
    yield from _newer_launcher(causes, argv)
    yield from _without_launcher(causes, argv)
    yield from _told_ranks(causes, argv)
    yield from _places(causes, argv)


def _newer_launcher(causes: Sequence[str], argv: Sequence[str]) -> Iterator[str]:
    """Propose the newer launcher to a script that does not know the option --local-rank."""
    if _OLDER in argv and any(map(_LOCAL_RANK.search, causes)):
        words = [_NEWER if word == _OLDER else word for word in argv]
        yield f"because its launcher passes --local-rank: {shlex.join(words)}"


def _without_launcher(causes: Sequence[str], argv: Sequence[str]) -> Iterator[str]:
    """Propose a command without accelerate's launcher if that started a single process."""
    if any(ONE_PROCESS in cause for cause in causes):
        end = argv.index("--") + 1
        words = [*argv[:end], *typed.after_launcher(argv[end:])]
        yield f"with ranks that form one group: {ON_CPU} {shlex.join(words)}"


def _told_ranks(causes: Sequence[str], argv: Sequence[str]) -> Iterator[str]:
    """Propose how to pass the number of ranks to a script that starts them itself.

    The number is set by an option that its file names, in a file that describes its world, or in a
    shell script.
    """
    if not any(_UNTOLD in cause for cause in causes):
        return
    words = argv[argv.index("--") + 1 :]
    described = next((w for w in words if Path(w).suffix in typed.DESCRIBES), None)
    script = next((Path(word) for word in words if word.endswith(".py")), None)
    text = (
        script.read_text(errors="replace", encoding="utf-8")
        if script is not None and script.is_file()
        else ""
    )
    option = _OPTION.search(text)
    if described is not None:
        yield f"with {{ranks}} as the number in {described}: {shlex.join(argv)}"
    elif option is not None and option[1] not in words:
        command = shlex.join([*argv, option[1], "{ranks}"])
        yield f"if {option[1]} is its number of ranks: {command}"
    else:
        line = shlex.join(words)
        command = shlex.join([*argv[: argv.index("--") + 1], "bash", "launch.sh", "{ranks}"])
        yield f"with {line} in launch.sh, for $1 ranks: {command}"


def _places(causes: Sequence[str], argv: Sequence[str]) -> Iterator[str]:
    """Propose the variables that launchers other than torchrun set for each rank."""
    named = {read[1] for cause in causes if (read := _VARIABLE.search(cause))}
    for program, places in typed.PLACES.items():
        if named & places.keys():
            given = " ".join(f"{x}={int(place.endswith('SIZE'))}" for x, place in places.items())
            yield f"with the variables that {program} sets: {given} {shlex.join(argv)}"
