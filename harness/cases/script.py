"""Plans for a user's training script: the typed command runs unchanged at every world size."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.base import programs
from harness.base.errors import SpecError, nearest
from harness.cases import typed
from harness.cases.case import SCRIPT, CaseSpec, Device, Mode
from harness.cases.plan import Plan, Protocol
from harness.cases.recipes import REAL, Recipe, ladder
from harness.cases.site import Site, rungs
from harness.cases.typed import RUN
from harness.host import secrets

#: An example of a command with a launcher, for the suggestions in errors.
LAUNCHED = "torchrun --nproc-per-node {ranks} train.py"
#: An example of a command with a script, for the suggestions in errors.
EXAMPLE = f"{RUN} train.py --lr 3e-4"
#: The checks of a script whose failure its user may accept. Each is named by the first word of its
#: message. The checks that find the steps and count their samples are not listed, because no result
#: is valid without them.
ACCEPTABLE = (
    "samples", "idle", "eval", "replicas", "gradients", "loss", "start", "optimizers", "precision",
    "work", "updates",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """The command that each rank runs.

    ``target`` is a Python file, or a module for ``python -m`` if ``module`` is set. ``args`` are
    its arguments. If the command starts the ranks itself, ``launcher`` holds all its words,
    including placeholders such as ``{ranks}``.
    """

    target: str
    module: bool
    args: tuple[str, ...]
    launcher: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the case: the stem of the file, or the last part of the module name."""
        stem = self.target.rpartition(".")[2] if self.module else Path(self.target).stem
        return "".join(c if c.isalnum() else "_" for c in stem)

    @property
    def elsewhere(self) -> bool:
        """Whether the file is outside of the folder that is copied for each launch.

        No files may be written next to such a file.
        """
        return not self.module and Path(self.target).is_absolute()


def parse(words: Sequence[str], folder: Path = Path()) -> ScriptCommand:
    """Parse the command of a training.

    It has the form ``train.py ARGS``, ``python train.py ARGS`` or ``-m package.train ARGS``, or is
    the command of a launcher. Files are searched in ``folder``. Raises SpecError for any other
    form, and if the words contain a secret, because the record stores them.
    """
    secrets.refuse(words, RUN)
    typed.refuse(words)
    if typed.launcher(words)[0]:
        return _launched(typed.for_every_rung(words))
    rest = list(typed.without_interpreter(words))
    if not rest:
        raise SpecError("no script to run", expected="-- train.py ARGS", fix=EXAMPLE)
    if rest[0] == "-m":
        if len(rest) == 1:
            raise SpecError("-m without a module", expected="-m package.train", fix=EXAMPLE)
        starts = ("python", *rest) if typed.spawns(rest, folder) else ()
        args = () if starts else tuple(rest[2:])
        return ScriptCommand(target=rest[1], module=True, args=args, launcher=starts)
    interpreted = len(rest) < len(words)
    if not rest[0].endswith(".py") and not (interpreted and (folder / rest[0]).exists()):
        return _launched(words, folder)
    if typed.spawns(rest, folder):
        return ScriptCommand(target=rest[0], module=False, args=(), launcher=("python", *rest))
    return ScriptCommand(target=rest[0], module=False, args=tuple(rest[1:]))


def _launched(words: Sequence[str], folder: Path = Path()) -> ScriptCommand:
    """Return the command of a launcher or of an installed program.

    A launcher needs a placeholder for the number of ranks. A program that is a Python file, such as
    ``litgpt``, needs none, because each rank runs it.
    """
    program = _program(words[0], folder)
    if program is None:
        raise _missing(words)
    script = typed.script_of(words)
    if typed.asks_for_ranks(words):
        target, module = script or (program, False)
        return ScriptCommand(target=target, module=module, args=(), launcher=tuple(words))
    if not typed.launcher(words)[0] and typed.of_python(Path(program), words):
        path = words[0] if "/" in words[0] else program
        return ScriptCommand(target=path, module=False, args=tuple(words[1:]))
    raise _untold(words, folder, folder / script[0]) if script else _unseen(words)


def _program(word: str, folder: Path) -> str | None:
    """Return the path of a program, or None. A relative path is searched in ``folder``."""
    return programs.which(str((folder / word).absolute()) if "/" in word else word)


def _missing(words: Sequence[str]) -> SpecError:
    """Return the error for a program that is not installed, with a command that works instead."""
    name = typed.launcher(words)[0]
    begin = typed.behind(words)
    if name and name not in typed.OF_MPI:
        return SpecError(
            f"{words[0]} is not installed here",
            where=shlex.join(words),
            expected=f"{name} in this environment",
            fix=f"pip install {'torch' if name == typed.TORCH else words[0]}",
        )
    return SpecError(
        f"{words[0]!r} is neither a Python file nor a program here",
        where=shlex.join(words),
        expected="train.py, python train.py, -m package.train, or a launcher with a script",
        fix=f"{RUN} {shlex.join(words[begin:])}" if begin else EXAMPLE,
    )


def _unseen(words: Sequence[str]) -> SpecError:
    """Return the error for a program, such as make, whose words do not show what it starts."""
    expected = "the command that this program runs, or the word {ranks} if it starts the ranks"
    fix = f"{RUN} {shlex.join([*words, '{ranks}'])}"
    if Path(words[0]).name == "make":
        expected = "the command that make prints, or its number of ranks: make train NPROC={ranks}"
        fix = shlex.join([words[0], "-n", *words[1:]])
    return SpecError(
        f"the words do not show what {words[0]} starts",
        where=shlex.join(words),
        expected=expected,
        fix=fix,
    )


def _untold(words: Sequence[str], folder: Path, script: Path) -> SpecError:
    """Return the error for a launcher command without a placeholder for the number of ranks.

    For a shell script, the suggested fix is the launcher command inside it, or an argument for the
    number of ranks.
    """
    started = shlex.join(typed.after_launcher(words))
    fix = f"{RUN} torchrun --nproc-per-node {{ranks}} {started}"
    expected = "{ranks} for the ranks of a node, {world} for all ranks; also {node} and {nodes}"
    if script.suffix == ".sh":
        inner = typed.within_shell(script)
        fix = f"{RUN} {shlex.join(inner or [*words, '{ranks}'])}"
        if not inner:
            expected = (
                f"the word {{ranks}} after {script.name}, which passes it on (for example as $1)"
            )
        if not inner and (number := typed.fixed_number(script)):
            expected = f"$1 instead of {number[0]!r} in {script.name}, and {{ranks}} after it"
            file = typed.unused(folder / "ranks.sh").name
            copy = f"sed 's/{number[0]}/{number[1]}/' {shlex.quote(str(script))} > {file}"
            fix = f"{copy} && {RUN} {shlex.join(['bash', file, '{ranks}'])}"
    return SpecError(
        "the command does not state how many ranks the launcher starts",
        where=shlex.join(words),
        expected=expected,
        fix=fix,
    )


def script_plan(
    words: Sequence[str],
    site: Site,
    mode: Mode = Mode.WEAK,
    samples: int = 0,
    protocol: Protocol = REAL,
    first_rung: int = 1,
    accept: str = "",
) -> Plan:
    """Return a scaling sweep of a script over the worlds of the site.

    Results are relative to the smallest world.

    Args:
        words: the command, as in a shell.
        samples: number of samples per step and rank; 0 if they can be counted.
        first_rung: ranks of the smallest world; above 1 for models that do not fit on one device.
        accept: checks that may fail because the user intends it: ``replicas,idle``.
    """
    case = replace(script_case(words, site, mode, samples), accepted=accepted(accept))
    if site.world_size <= first_rung:
        ranks = f"--{'gpus' if site.device is Device.CUDA else 'cpus'} {2 * first_rung}"
        if first_rung > 1:
            ranks += f" --first-rung {first_rung}"
        many = "one rank has" if site.world_size == 1 else f"{site.world_size} ranks have"
        raise SpecError(
            f"{many} nothing to be compared with",
            expected=f"more than {first_rung} rank{'s' * (first_rung > 1)}",
            fix=f"{RUN.replace('--cpus 2', ranks)} {shlex.join(words)}",
        )
    worlds = rungs(site.world_size, first_rung)
    against = "wrapped" if first_rung == 1 else "smallest_fit"
    plan = ladder(case, worlds, baselines=(against,), protocol=protocol, shape=site.shape)
    lowest = tuple(
        contrast for contrast in plan.contrasts if contrast.baseline == (f"@{first_rung}",)
    )
    return replace(plan, contrasts=lowest)


def accepted(words: str) -> str:
    """Return the checks in a list such as ``replicas,idle``, sorted and without duplicates.

    Raises SpecError for a check that does not exist.
    """
    named = {word.strip() for word in words.split(",") if word.strip()}
    for word in sorted(named.difference(ACCEPTABLE)):
        raise SpecError(
            f"--accept {word}: there is no such check{nearest(word, ACCEPTABLE)}",
            expected=", ".join(ACCEPTABLE),
            fix=f"{RUN.replace(' --', ' --accept replicas --', 1)} train.py",
        )
    return ",".join(sorted(named))


def script_case(words: Sequence[str], site: Site, mode: Mode, samples: int = 0) -> CaseSpec:
    """Return the case of a script on all ranks of the site.

    Raise SpecError if the file does not exist.
    """
    words = _from_anywhere(words)
    command = parse(words)
    if not command.module and not Path(command.target).is_file():
        raise SpecError(
            f"{command.target}: no such file",
            where=str(Path.cwd()),
            expected="the path of a Python file, relative to this folder",
            fix=f"ls {Path(command.target).parent}",
        )
    return replace(
        site.case(f"{SCRIPT}/{command.name}-own", mode),
        script=shlex.join(words),
        samples_per_step=samples or None,
    )


def _from_anywhere(words: Sequence[str]) -> list[str]:
    """Return the words, with absolute paths for scripts outside of the current folder.

    Each launch runs in a copy of the folder, in which relative paths to outside files are wrong.
    """
    outside = [
        word.startswith("..") and word.endswith((".py", ".sh")) and Path(word).is_file()
        for word in words
    ]
    return [str(Path(w).resolve()) if o else w for w, o in zip(words, outside, strict=True)]


def script(
    *words: str,
    mode: str = Mode.WEAK,
    samples: int = 0,
    protocol: Protocol = REAL,
    first_rung: int = 1,
    accept: str = "",
) -> Recipe:
    """Return a recipe that measures a script: ``@scaling(script("train.py", "--lr", "3e-4"))``."""

    def recipe(site: Site) -> list[Plan]:
        return [script_plan(words, site, Mode(mode), samples, protocol, first_rung, accept)]

    recipe.__name__ = parse(words).name
    return recipe
