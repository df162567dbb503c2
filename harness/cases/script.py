"""A user's own training as a plan: the command as it is typed, run unchanged on every rung."""

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

LAUNCHED = "torchrun --nproc-per-node {ranks} train.py"
EXAMPLE = f"{RUN} train.py --lr 3e-4"
#: Checks of a script that its user may answer for, by the word that their sentences begin with.
#: Nobody can for what a step is, and how many samples it has: no figure is left without them.
ACCEPTABLE = (
    "samples", "idle", "eval", "replicas", "gradients", "loss", "start", "optimizers", "precision",
    "work", "updates",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ScriptCommand:
    """The command that each rank runs: a Python file, or with ``module`` what ``python -m`` takes.

    With a ``launcher`` it starts the ranks itself: these are all its words, ``{ranks}`` and the
    like still in them.
    """

    target: str
    module: bool
    args: tuple[str, ...]
    launcher: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the case: the file's stem, or the module's last name."""
        stem = self.target.rpartition(".")[2] if self.module else Path(self.target).stem
        return "".join(c if c.isalnum() else "_" for c in stem)

    @property
    def elsewhere(self) -> bool:
        """Whether its file is none of a launch's copy, so that nothing may be written beside it."""
        return not self.module and Path(self.target).is_absolute()


def parse(words: Sequence[str], folder: Path = Path()) -> ScriptCommand:
    """``train.py ARGS``, ``python train.py ARGS``, ``-m package.train ARGS``, or a launcher's.

    A file is looked for in ``folder``. SpecError for anything else, and for a secret among the
    words: the record keeps them.
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
    """A launcher's command, which has to be told how many ranks to start, or a program that is
    Python itself (``litgpt pretrain``): each rank runs it.
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
    """The path of a program; one that is named by a path is looked for in ``folder``."""
    return programs.which(str((folder / word).absolute()) if "/" in word else word)


def _missing(words: Sequence[str]) -> SpecError:
    """The error of a program that is not there, with what it would have started."""
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
    """The error of a program that may start anything: make, say."""
    expected = "the command that it runs, or {ranks} among its words if it starts the ranks"
    fix = f"{RUN} {shlex.join([*words, '{ranks}'])}"
    if Path(words[0]).name == "make":
        expected = "the command that make prints, or its number of ranks: make train NPROC={ranks}"
        fix = shlex.join([words[0], "-n", *words[1:]])
    return SpecError(
        f"what {words[0]} starts is not seen in its words",
        where=shlex.join(words),
        expected=expected,
        fix=fix,
    )


def _untold(words: Sequence[str], folder: Path, script: Path) -> SpecError:
    """The error of a launcher that starts as many ranks as it likes; of a shell script with what it
    starts, or with an argument that it can use.
    """
    started = shlex.join(typed.after_launcher(words))
    fix = f"{RUN} torchrun --nproc-per-node {{ranks}} {started}"
    expected = "{ranks} for those of a node, {world} for all; {node} and {nodes}"
    if script.suffix == ".sh":
        inner = typed.within_shell(script)
        fix = f"{RUN} {shlex.join(inner or [*words, '{ranks}'])}"
        if not inner:
            expected = f"{{ranks}} among its words, which {script.name} passes on (as $1, say)"
        if not inner and (number := typed.fixed_number(script)):
            expected = f"$1 in the place of {number[0]!r} in {script.name}, and {{ranks}} behind it"
            file = typed.unused(folder / "ranks.sh").name
            copy = f"sed 's/{number[0]}/{number[1]}/' {shlex.quote(str(script))} > {file}"
            fix = f"{copy} && {RUN} {shlex.join(['bash', file, '{ranks}'])}"
    return SpecError(
        "the launcher is not told how many ranks to start",
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
    """A ladder of a script over the site's worlds, against itself on its smallest world.

    Args:
        words: the command, as in a shell.
        samples: samples of a step on one rank, where they cannot be counted; 0 = they are counted.
        first_rung: ranks of the smallest world, for models that one device cannot hold.
        accept: checks that may fail, as that is meant: ``replicas,idle``.
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
    """The checks that ``replicas,idle`` names, each once and in one order; SpecError for others."""
    named = {word.strip() for word in words.split(",") if word.strip()}
    for word in sorted(named.difference(ACCEPTABLE)):
        raise SpecError(
            f"--accept {word}: there is no such check{nearest(word, ACCEPTABLE)}",
            expected=", ".join(ACCEPTABLE),
            fix=f"{RUN.replace(' --', ' --accept replicas --', 1)} train.py",
        )
    return ",".join(sorted(named))


def script_case(words: Sequence[str], site: Site, mode: Mode, samples: int = 0) -> CaseSpec:
    """A script over all ranks of the site; SpecError where there is none."""
    words = _from_anywhere(words)
    command = parse(words)
    if not command.module and not Path(command.target).is_file():
        raise SpecError(
            f"{command.target}: no such file",
            where=str(Path.cwd()),
            expected="a Python file, as from this folder",
            fix=f"ls {Path(command.target).parent}",
        )
    return replace(
        site.case(f"{SCRIPT}/{command.name}-own", mode),
        script=shlex.join(words),
        samples_per_step=samples or None,
    )


def _from_anywhere(words: Sequence[str]) -> list[str]:
    """The words with the path of a script outside of this folder, of which each launch has a copy,
    from the root on.
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
    """A recipe for ``@scaling``: ``script("train.py", "--lr", "3e-4")``."""

    def recipe(site: Site) -> list[Plan]:
        return [script_plan(words, site, Mode(mode), samples, protocol, first_rung, accept)]

    recipe.__name__ = parse(words).name
    return recipe
