"""Parser of the words before a user's script.

They can be an interpreter, a launcher, or a program that is refused.
"""

import ast
import contextlib
import itertools
import re
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.base import programs
from harness.base.errors import SpecError

#: The start of every command that an error suggests.
RUN = "scaleproof run --script --cpus 2 --"
#: Names of a Python interpreter: ``python``, ``python3``, ``python3.11``.
_PYTHON = re.compile(r"python(\d(\.\d+)?)?$")
#: Interpreter options that do not change what a script does in a rank.
_HARMLESS = frozenset({"-u", "-B", "-q"})
#: The start of a shell assignment, such as ``OMP_NUM_THREADS=1``.
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: Text that shows that a script starts its ranks itself. It is a call of torch's ``mp.spawn``, of a
#: library that uses it (Lightning, accelerate, ignite), or of ``Process``, as in torch's oldest
#: tutorial.
_SPAWNS = re.compile(
    r"\b(?:mp|multiprocessing)\.(?:spawn|start_processes)\s*\("
    r"|\bfrom torch\.multiproc\S* import .*\bspawn\b"
    r"|\bddp_(?:spawn|fork|notebook)"
    r"|\bnotebook_launcher\s*\("
    r"|\bnproc_per_node\s*="
)
_PROCESS = re.compile(r"\bProcess\(\s*target\s*=")
_GROUP = "init_process_group("
#: Calls with which a script can start one interpreter for each rank.
_INTERPRETERS = re.compile(r"\b(?:Popen|subprocess\.\w+|os\.system)\s*\(")
#: Patterns of text in a shell script: the use of an argument, and an option with a number of ranks.
_ARGUMENT = re.compile(r"\$\{?[1@*]")
_NUMBER = re.compile(
    r"(--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus|devices)[= ]|\bmpi\w+ -np? )\d+"
)
#: Suffixes of configuration files that may hold the number of ranks.
DESCRIBES = frozenset({".json", ".yaml", ".yml", ".toml"})
#: The modules of torch's launcher, as ``python -m`` takes them.
_TORCHRUN = ("torch.distributed.run", "torch.distributed.launch")
#: The launcher options whose values depend on the world, and the placeholders that replace these
#: values. If no option sets the number of ranks, the first option is inserted.
_DECIDED: Mapping[str, Mapping[str, str]] = {
    "torchrun": {"--nproc-per-node": "{ranks}", "--master-port": "{port}"},
    "accelerate launch": {
        "--num-processes": "{world}", "--num-machines": "{nodes}", "--machine-rank": "{node}",
        "--main-process-ip": "{host}", "--main-process-port": "{port}",
    },
    "deepspeed": {"--num-gpus": "{ranks}", "--num-nodes": "{nodes}", "--master-port": "{port}"},
    "fabric run": {
        "--devices": "{ranks}", "--num-nodes": "{nodes}", "--node-rank": "{node}",
        "--main-address": "{host}", "--main-port": "{port}",
    },
    "mpirun": {"-np": "{ranks}", "-n": "{ranks}"},
    "mpiexec": {"-n": "{ranks}", "-np": "{ranks}"},
}  # fmt: skip
#: Launchers whose ranks meet at a fixed default port. An option for the port is inserted, because
#: concurrent launches would otherwise fail.
_FIXED_PORT = frozenset({"deepspeed", "fabric run"})
#: The reason why ``accelerate launch`` is unsuitable on CPUs, and the variable that makes the
#: accelerate library use CPUs.
ONE_PROCESS = "accelerate launch starts one process if there is no GPU"
ON_CPU = "ACCELERATE_USE_CPU=true"
#: The launcher that the torch package installs. Each other launcher has a package of the same name.
TORCH = "torchrun"
#: Launchers that no Python package installs.
OF_MPI = frozenset({"mpirun", "mpiexec"})
#: Launchers that spell their options with underscores. torchrun accepts both spellings.
_UNDERSCORED = frozenset({"accelerate launch", "deepspeed"})
#: Interpreter options whose value is the next word.
_WITH_VALUE = frozenset({"-W", "-X"})


def without_interpreter(words: Sequence[str]) -> Sequence[str]:
    """Return the words after the interpreter and its harmless options, such as ``python -u``.

    Raises SpecError for other interpreter options, because ranks cannot use them.
    """
    if not words or not _PYTHON.match(Path(words[0]).name):
        return words
    rest = list(words[1:])
    while rest and rest[0] in _HARMLESS:
        rest = rest[1:]
    if not rest or not rest[0].startswith("-") or rest[0] == "-m":
        return rest
    option = rest[0]
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        rest = rest[2 if rest[0] in _WITH_VALUE else 1 :]
    raise SpecError(
        f"ranks cannot use python's option {option}",
        where=shlex.join(words),
        expected="train.py or -m package.train, without interpreter options",
        fix=f"{RUN} {'train.py' if option == '-c' or not rest else shlex.join(rest)}",
    )


def launcher(words: Sequence[str]) -> tuple[str, int]:
    """Return the name of the launcher that begins the words, and the index of its first option.

    The name is empty if they do not begin with a known launcher.
    """
    program = Path(words[0]).name if words else ""
    for name in _DECIDED:
        first, *rest = name.split()
        if program == first and list(words[1 : 1 + len(rest)]) == rest:
            return name, 1 + len(rest)
    rest = list(without_interpreter(words))
    if len(rest) < len(words) and rest[:1] == ["-m"] and rest[1:2] and rest[1] in _TORCHRUN:
        return TORCH, len(words) - len(rest) + 2
    return "", 0


def for_every_rung(words: Sequence[str]) -> list[str]:
    """Return a launcher's words with fixed numbers of ranks and ports replaced by placeholders.

    The option for the number of ranks is inserted if the words do not have it.
    """
    name, begin = launcher(words)
    decided_by_rung = dict(_DECIDED[name])
    end = next((i for i in range(begin, len(words)) if _begins_script(words[i])), len(words))
    options = list(words[begin:end])
    decided: list[str] = []
    while options:
        word = options.pop(0)
        option, equals, value = word.partition("=")
        becomes = decided_by_rung.get(option.replace("_", "-"))
        if becomes is None:
            decided.append(word)
            continue
        # A second short option belongs to the program that the launcher starts.
        if not option.startswith("--"):
            decided_by_rung.clear()
        if not equals and options:
            value = options.pop(0)
        decided += _option(option, value if "{" in value else becomes)
    whole = [*words[:begin], *decided, *words[end:]]
    if not asks_for_ranks(whole):
        option, becomes = next(iter(_DECIDED[name].items()))
        whole[begin:begin] = _option(_spelt(name, option), becomes)
    if name in _FIXED_PORT and not any("{port}" in word for word in whole):
        option = next(o for o, becomes in decided_by_rung.items() if becomes == "{port}")
        whole[begin:begin] = _option(_spelt(name, option), "{port}")
    return whole


def _spelt(name: str, option: str) -> str:
    """Return an inserted option in the spelling of its launcher."""
    return f"--{option[2:].replace('-', '_')}" if name in _UNDERSCORED else option


def _option(option: str, value: str) -> list[str]:
    """Return an option with its value: one word for a long option, two words for a short one."""
    return [f"{option}={value}"] if option.startswith("--") else [option, value]


def spawns(words: Sequence[str], folder: Path) -> bool:
    """Return whether a script starts its ranks itself and takes their number from its words.

    The script is then its own launcher. This function searches the words, the script, and the
    user's files that the script imports. If no word is a placeholder for the number of ranks, the
    result is False, because many scripts start ranks only if an option requests it.
    """
    script = _file_of(words, folder)
    asks = asks_for_ranks(words) or any(described_in(words, folder))
    if script is None or not asks:
        return False
    texts = [*_texts(script, folder)]
    whole = "\n".join([*words, *texts])
    if _SPAWNS.search(whole) or (_PROCESS.search(whole) and _GROUP in whole):
        return True
    return "sys.executable" in texts[0] and bool(_INTERPRETERS.search(texts[0]))


def _file_of(words: Sequence[str], folder: Path) -> Path | None:
    """Return the user's file that these words run, or None.

    It is a script, or the file of a module (``-m package``).
    """
    named = [folder / word for word in words if word.endswith(".py")][:1]
    if len(words) > 1 and words[0] == "-m":
        module = folder.joinpath(*words[1].split("."))
        named = [module / "__main__.py", module.with_suffix(".py")]
    return next((file for file in named if file.is_file()), None)


def joins_group(words: Sequence[str], folder: Path) -> bool:
    """Return whether these words run a Python script that calls ``init_process_group``.

    This function searches the script and the user's files that it imports.
    """
    if not words or not _PYTHON.match(Path(words[0]).name):
        return False
    script = next((folder / word for word in words[1:] if word.endswith(".py")), None)
    if script is None or not script.is_file():
        return False
    return any(_GROUP in text for text in _texts(script, folder))


def _texts(script: Path, folder: Path) -> Iterator[str]:
    """Yield the text of a script and of every user's file that it imports directly or indirectly.

    Files that cannot be parsed are yielded, but their imports are not followed.
    """
    files = [script.resolve()]
    for path in files:  # the loop appends imported files to this list
        text = path.read_text(errors="replace", encoding="utf-8")
        yield text
        with contextlib.suppress(SyntaxError, ValueError), warnings.catch_warnings(action="ignore"):
            for name in _imported(text):
                for base in (path.parent, script.parent, folder):
                    module = base.joinpath(*name.split(".")).resolve()
                    named = (module.with_suffix(".py"), module / "__init__.py")
                    files += [file for file in named if file.is_file() and file not in files]


def _imported(text: str) -> Iterator[str]:
    """Yield the names in import statements that are, or may be, modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = [node.module] if node.module else []
            yield from package
            yield from (".".join([*package, alias.name]) for alias in node.names)


def described_in(words: Sequence[str], folder: Path) -> Iterator[Path]:
    """Yield the files among the words that contain a placeholder for the number of ranks."""
    for word in words:
        path = folder / word.rpartition("=")[2]
        if path.suffix in DESCRIBES and path.is_file():
            if asks_for_ranks([path.read_text(errors="replace", encoding="utf-8")]):
                yield path


def _begins_script(word: str) -> bool:
    """Return whether this word is a script, or the option ``-m`` before a module."""
    return word == "-m" or word.endswith((".py", ".sh"))


def begins_command(words: Sequence[str]) -> bool:
    """Return whether these words begin with a script, interpreter, shell or known launcher."""
    program = Path(words[0]).name
    if program.endswith((".py", ".sh")) or program in {"bash", "sh"} or _PYTHON.match(program):
        return True
    return bool(launcher(words)[0])


def asks_for_ranks(words: Sequence[str]) -> bool:
    """Return whether a word contains a placeholder for the number of ranks."""
    return any("{ranks}" in word or "{world}" in word for word in words)


def within_shell(script: Path) -> Sequence[str]:
    """Return the launcher command in a shell script, with placeholders for the number of ranks.

    The result is empty if no line starts a known launcher, or if the line has words that only a
    shell can expand.
    """
    text = script.read_text(errors="replace", encoding="utf-8") if script.is_file() else ""
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # the quotation continues in the next line
            continue
        while words and ASSIGNMENT.match(words[0]):
            words = words[1:]
        if launcher(words)[0]:
            rung = for_every_rung(words)
            return () if any("$" in word or "`" in word for word in rung) else rung
    return ()


def fixed_number(script: Path) -> tuple[str, str] | None:
    """Return the text with which a shell script sets the number of ranks, and a replacement.

    The replacement takes the number from the script's first argument. The result is None if the
    script already uses arguments, or sets no number of ranks.
    """
    text = script.read_text(errors="replace", encoding="utf-8") if script.is_file() else ""
    if _ARGUMENT.search(text):
        return None
    number = _NUMBER.search(text)
    return None if number is None else (number[0], f"{number[1]}$1")


def after_launcher(words: Sequence[str]) -> list[str]:
    """Return the script that a launcher starts, with its arguments."""
    begin = next((i for i in range(1, len(words)) if _begins_script(words[i])), 0)
    return list(words[begin:])


def script_of(words: Sequence[str]) -> tuple[str, bool] | None:
    """Return the script that a launcher starts, and whether it is a module.

    A script is a Python file, a module or a shell script. Return None if no word is a script.
    """
    for number, word in enumerate(words[1:], 1):
        if word.endswith(".py"):
            return word, False
        if word == "-m" and number + 1 < len(words) and words[number + 1] not in _TORCHRUN:
            return words[number + 1], True
    shell = next((w for w in words if w.endswith(".sh")), None)
    return None if shell is None else (shell, False)


#: Programs that start ranks on other nodes, and the engine that replaces each of them.
_ENGINES = {"srun": "slurm", "sbatch": "slurm"}
#: Programs that start one command, which follows their options.
_WRAPPERS = frozenset({
    "chrt", "ionice", "ltrace", "nice", "nohup", "nsys", "numactl", "perf", "setsid", "stdbuf",
    "strace", "taskset", "time", "timeout",
})  # fmt: skip
#: Programs that run a command in their environment: ``poetry run train.py``.
_MANAGERS = frozenset({
    "conda", "hatch", "mamba", "micromamba", "pdm", "pipenv", "pixi", "poetry", "rye", "uv",
})  # fmt: skip
#: Shells, which are refused if they run a command line (``-c``).
_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
#: The option ``-c``, also as ``-lc``, and characters that only a shell interprets.
_LINE = re.compile(r"-[a-z]*c$")
_OF_SHELL = re.compile(r"[;&|<>$`\n]")
#: Number of bytes at the start of a program that are read. They name the Python interpreter that
#: runs it: by its path, through ``env``, or through a shell if the path is too long.
_HEAD = 512
_INTERPRETER = re.compile(
    rb"#!\s*(?:\S*/env\s+(?:-S\s*)?)?(\S*python[\d.]*)\b"
    rb"|#!/bin/sh\n'''exec' [\"']?([^\"'\n]*python[\d.]*)"
)
#: The environment variables with which launchers other than torchrun tell a rank its position, and
#: torchrun's names of these variables.
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
    """Raise SpecError if the words begin with a program that must not start the script.

    The error suggests a command that works.
    """
    _refuse_variables(words)
    program = Path(words[0]).name if words else ""
    if program in _ENGINES:
        _refuse_engine(words, program)
    if program in _SHELLS:
        _refuse_line(words)
    if program.endswith(".ipynb"):
        _refuse_notebook(words)
    manages = program in _MANAGERS and list(words[1:2]) == ["run"]
    if (manages or program in _WRAPPERS) and not asks_for_ranks(words):
        _refuse_wrapper(words, f"{program} run" if manages else program)


def of_python(program: Path, words: Sequence[str]) -> bool:
    """Return whether a program is a Python file, as pip installs for entry points.

    Raises SpecError if it belongs to another Python environment.
    """
    try:
        with program.open("rb") as file:
            line = _INTERPRETER.match(file.read(_HEAD))
    except OSError:  # the file may be executable but not readable
        line = None
    if line is None:
        return False
    interpreter = Path((line[1] or line[2]).decode(errors="replace"))
    if interpreter.parent != Path() and interpreter.parent != Path(sys.executable).parent:
        raise SpecError(
            f"{words[0]} belongs to another Python, {interpreter}",
            where=shlex.join(words),
            expected="scaleproof is installed in that environment",
            fix=f"{RUN} python {words[0]}"
            if "/" in words[0]
            else f"{interpreter} -m pip install scaleproof",
        )
    return True


def unused(path: Path) -> Path:
    """Return this path, or a numbered path if it exists, so that a fix overwrites no file."""
    others = (path.with_stem(f"{path.stem}_{number}") for number in itertools.count(2))
    return next(p for p in itertools.chain([path], others) if not p.exists())


def behind(words: Sequence[str]) -> int:
    """Return the index at which the command begins that a wrapper runs, or 0 without a wrapper.

    The words may start with a wrapper such as ``numactl --localalloc``.
    """
    return next((i for i in range(1, len(words)) if begins_command(words[i:])), 0)


def _refuse_variables(words: Sequence[str]) -> None:
    """Raise SpecError if variables are assigned before the script.

    Ranks inherit variables from the shell that runs scaleproof.
    """
    rest = list(words)
    if rest and rest[0] == "env":
        rest = rest[1:]
    given = [word for word in rest if ASSIGNMENT.match(word)]
    if given and rest[: len(given)] == given:
        script = shlex.join(rest[len(given) :])
        raise SpecError(
            f"{shlex.join(given)} cannot precede the script, because ranks inherit the variables "
            "of this shell",
            where=shlex.join(words),
            expected="variables are set before the word scaleproof",
            fix=f"{shlex.join(given)} {RUN} {script}",
        )


def _refuse_engine(words: Sequence[str], program: str) -> None:
    """Raise SpecError for a program that starts ranks on other nodes, which is an engine's task."""
    engine = _ENGINES[program]
    begin = behind(words)
    script = shlex.join(without_interpreter(words[begin:])) if begin else "train.py"
    raise SpecError(
        f"{program} starts ranks itself, which is the task of --engine {engine}",
        where=shlex.join(words),
        expected="the command of the script without this program",
        fix=f"scaleproof run --script --engine {engine} --nodes 2 --cpus 4 -- {script}",
    )


def _refuse_line(words: Sequence[str]) -> None:
    """Raise SpecError for a shell that runs a command line (``bash -c "…"``)."""
    options = list(itertools.takewhile(lambda word: word.startswith("-"), words[1:]))
    if not any(map(_LINE.match, options)) or len(words) == 1 + len(options):
        return
    line = words[1 + len(options)]
    try:
        inner = shlex.split(line)
    except ValueError:  # a quotation mark is missing
        inner = []
    alone = bool(inner) and not _OF_SHELL.search(line)
    raise SpecError(
        f"{words[0]} {shlex.join(options)} runs a command line of a shell",
        where=shlex.join(words),
        expected="the command itself, without a shell"
        if alone
        else "that line in a file launch.sh, with $1 as the number of ranks",
        fix=f"{RUN} {shlex.join(inner if alone else ['bash', 'launch.sh', '{ranks}'])}",
    )


def _refuse_notebook(words: Sequence[str]) -> None:
    """Raise SpecError for a notebook. The fix converts it into a Python file."""
    name = words[0]
    stem = unused(Path(Path(name).stem + ".py")).stem
    raise SpecError(
        f"{name} is a notebook: ranks run Python files",
        where=shlex.join(words),
        expected="a Python file, or 'with harness.measure_steps():' in the notebook",
        fix=f"jupyter nbconvert --to script {name} --output-dir . --output {stem}"
        f" && {RUN} {stem}.py",
    )


def _refuse_wrapper(words: Sequence[str], name: str) -> None:
    """Raise SpecError for a program that starts only one process, such as ``nohup``.

    It must precede scaleproof, which starts the ranks.
    """
    begin = behind(words)
    if (
        not begin and name != words[0]
    ):  # the command is a module, or a program of the other environment
        begin = words.index("-m") if "-m" in words else 2
    if not begin or begin == len(words):
        return
    command = shlex.join(words[begin:])
    where = shlex.join(words)
    if name == words[0] != "time" and programs.which(name) is None:  # ``time`` is a shell keyword
        raise SpecError(
            f"{words[0]} is not installed here",
            where=where,
            expected="a command that is installed on this machine",
            fix=f"{RUN} {command}",
        )
    raise SpecError(
        f"{name} starts only one process, but scaleproof starts the ranks",
        where=where,
        expected=f"{name} precedes scaleproof",
        fix=f"{shlex.join(words[:begin])} {RUN} {command}",
    )
