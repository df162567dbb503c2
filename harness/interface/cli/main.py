"""The program ``scaleproof``: find the command that the user typed, run it, and print its answer.

    words -> name and options of a command -> its file -> Answer -> lines or JSON, exit status

Commands are the files of ``commands/``, here and in features. Their heads state which commands they
contain, and only the file of the requested command is imported.
"""

import argparse
import difflib
import importlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from harness.base import host_errors, pipes
from harness.base.documents import to_doc
from harness.base.errors import (
    Exit,
    LaunchError,
    RecordError,
    ScaleproofError,
    SpecError,
    nearest,
)
from harness.cases import heads
from harness.cases.heads import read_head
from harness.interface import offered, options
from harness.interface.cli import index
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import chain
from harness.record.store import load

COMMANDS = Path(__file__).parent / "commands"
#: The identifier of a run, which is the name of its folder.
_RUN = re.compile(r"\d{8}-\d{6}-[0-9a-f]{4}")


class Parser(argparse.ArgumentParser):
    """The parser of one command, with the exit status of usage errors and suggestions.

    ``shows_all`` says whether its help lists advanced options as well.
    """

    def __init__(self, *args: Any, shows_all: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.shows_all = shows_all

    def error(self, message: str) -> NoReturn:
        if "invalid choice: " in message:
            what, _, rest = message.removeprefix("argument ").partition(": invalid choice: ")
            wrong, _, listed = rest.partition(" (choose from ")
            known = re.findall(r"[\w-]+", listed)
            message = f"no {what.lower()} {wrong}{nearest(wrong.strip(chr(39)), known)}"
            raise SpecError(message, expected=", ".join(known), fix=f"{self.prog} --help")
        elif "unrecognized arguments:" in message:
            wrong = message.partition(": ")[2].partition(" ")[0]
            message = f"no option {wrong!r}{nearest(wrong, self.known())}"
        elif "arguments are required: " in message:
            names = [str(a.metavar or a.dest) for a in self._actions if not a.option_strings]
            missing = message.partition(": ")[2]
            raise SpecError(
                f"missing: {missing}",
                expected=" ".join([self.prog, *names]),
                fix=f"{self.prog} --help",
            )
        raise SpecError(message, fix=f"{self.prog} --help")

    def format_help(self) -> str:
        hides = any(action.help is argparse.SUPPRESS for action in self._actions)
        return super().format_help() + (f"\nall options: {self.prog} --help-all\n" if hides else "")

    def actions(self) -> list[argparse.Action]:
        """Return its options and its arguments without an option."""
        return list(self._actions)

    def known(self) -> list[str]:
        """Return the names of its options."""
        return [option for action in self._actions for option in action.option_strings]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    The status does not change if a reader closes the output early, but a successful command returns
    ERROR if its output was lost, for example on a full disk.
    """
    if "_ARGCOMPLETE" in os.environ:
        line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT", 1 << 20))]
        _complete(line.split(), line)
    with pipes.kept_open() as streams:
        status = _main(list(sys.argv[1:] if argv is None else argv))
    return status or (int(Exit.ERROR) if streams.lost else 0)


def _main(words: Sequence[str]) -> int:
    _end_on_signals()
    try:
        host_errors.refuse_narrow_limits()
        offered.refuse_unknown_variables()
        answer = run(words)
    except ScaleproofError as error:
        return _told(error, words)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return int(Exit.INTERRUPTED)
    except OSError as error:
        return _told(host_errors.by_host(error) or host_errors.in_words(error, words), words)
    except subprocess.CalledProcessError as error:
        command = error.cmd.split() if isinstance(error.cmd, str) else map(str, error.cmd)
        return _told(host_errors.full([*command, *words]) or _failed(error), words)
    except RecursionError:
        return _told(_too_deep(words), words)
    except Exception as bug:
        if (lacking := host_errors.by_host(bug)) is not None:
            return _told(lacking, words)
        if (damaged := _damaged(words, bug)) is not None:
            return _told(damaged, words)
        traceback.print_exc()
        sys.stderr.write("ERROR: this is a bug in scaleproof; the lines above show where\n")
        return int(Exit.INTERNAL)
    return int(answer.exit)


def _end_on_signals() -> None:
    """Let SIGTERM and SIGHUP end a command as Ctrl-C does, so that it removes unfinished files.

    A signal that is ignored, for example by nohup, stays so. A run replaces these handlers.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, interrupt)


def _too_deep(words: Sequence[str]) -> SpecError:
    """Return the error for a document that is nested more deeply than its reader can follow."""
    files = [word for word in words if Path(word).exists()]
    return SpecError(
        "the document is nested too deeply to be read",
        where=" ".join(files),
        expected="a document with less than a thousand levels",
        fix="scaleproof --help",
    )


def _failed(error: subprocess.CalledProcessError) -> LaunchError:
    """Return the error for a failed external program, which says nothing about any record."""
    command = error.cmd if isinstance(error.cmd, str) else shlex.join(map(str, error.cmd))
    output = str(error.stderr or error.output or "").strip().splitlines() or ["it printed nothing"]
    return LaunchError(
        f"a program that is needed left with status {error.returncode}: {output[-1]}",
        where=command[:200],
        expected="exit status 0",
        fix=command,
    )


def _told(error: ScaleproofError, words: Sequence[str]) -> int:
    """Report an error, with ``--json`` also as a document, and return the exit status."""
    if "--json" in _split(words)[0]:
        document = {"error": error.what, "where": error.where, "expected": error.expected}
        sys.stdout.write(json.dumps({**document, "try": error.fix}, indent=1) + "\n")
    lines = f"ERROR: {error}".splitlines()
    if sys.stderr.isatty():  # in a log, a sentence stays one line
        lines = [part for line in lines for part in _fitted(line)]
    text.write(lines, sys.stderr)
    return int(error.exit)


def _fitted(line: str) -> list[str]:
    """Return a line of an error as lines that fit the terminal. A command can still be copied."""
    labels = {"  expected  ": text.wrap, "  try       ": text.wrap_command}
    wrap = next((wrap for label, wrap in labels.items() if line.startswith(label)), text.wrap)
    indent = 2 if wrap is text.wrap and not line.startswith("  expected") else 12
    return wrap(line, text.columns(), indent)


def _damaged(words: Sequence[str], bug: Exception) -> RecordError | None:
    """Return the error if a command failed because one of its records is damaged, else None."""
    from harness.analysis.verify import verify  # imported here because most commands do not need it

    frame = traceback.extract_tb(bug.__traceback__)[-1]
    given = (path if path.is_dir() else path.parent for path in map(Path, _split(words)[0]))
    senseless = {}
    for folder in (
        f for f in given if any((f / name).is_file() for name in ("record.json", chain.FILE))
    ):
        try:
            differences = verify(load(folder), folder).differences
        except RecordError as error:
            return error
        except Exception as broken:  # a failure of verification is caused by the record
            if host_errors.by_host(broken) is not None:
                raise
            differences = ("its figures contradict each other",)
        senseless[folder] = differences[0] if differences else ""
    if not senseless:
        return None
    folder = next((f for f, why in senseless.items() if why), next(iter(senseless)))
    what = senseless[folder] or f"{type(bug).__name__}: {bug}"
    return RecordError(
        f"this record is damaged: {what[:300]} ({Path(frame.filename).name}:{frame.lineno})",
        where=str(folder),
        expected="an unchanged record; if this one is unchanged, scaleproof has a bug there",
        fix=f"scaleproof verify {folder}",
    )


def _complete(words: Sequence[str], typed: str) -> NoReturn:
    """Answer a shell at TAB, after ``eval "$(register-python-argcomplete scaleproof)"``."""
    import argcomplete

    known = commands()
    complete = words[1:] if typed.endswith(" ") else words[1:-1]
    partial = "" if typed.endswith(" ") else words[-1]
    names = sorted({name.partition(" ")[0] for name in known})
    if complete:
        names = index.subcommands(complete[0], list(known))
    if names and len(complete) < 2 and not partial.startswith("-"):
        chosen = argparse.ArgumentParser(prog="scaleproof")
        chosen.add_argument("command", choices=names)
        skipped = len(complete)
    else:
        name, _ = resolve(complete, known)
        chosen = parser(name, known[name], shows_all=True)
        skipped = len(name.split())
    # argcomplete takes the word at this place, counted from 1, for the program.
    os.environ["_ARGCOMPLETE"] = str(1 + skipped)
    argcomplete.autocomplete(chosen)
    raise SystemExit(Exit.INTERNAL)  # not reached, because autocomplete ends the process


def resolve(words: Sequence[str], known: Mapping[str, Path]) -> tuple[str, Sequence[str]]:
    """Return the name of the command that ``words`` begin with, and the other words.

    The name is empty if the words name a group that is no command itself. An old name is replaced,
    with a note on stderr. Raise SpecError if there is no such command.
    """
    first = words[0]
    two = " ".join(words[:2])
    if two in known:
        return two, words[2:]
    if first in known:
        return first, words[1:]
    new = index.OLD_NAMES.get(first, "")
    if new in known:
        text.write([f"note: `scaleproof {first}` is now `scaleproof {new}`"], sys.stderr)
        return new, words[1:]
    if index.subcommands(first, list(known)):
        return "", words
    groups = sorted({name.partition(" ")[0] for name in known})
    named = {**index.OLD_NAMES, **{group: group for group in groups}}
    similar = difflib.get_close_matches(first, named, 1)
    suggestion = f": did you mean {named[similar[0]]!r}?" if similar else ""
    raise SpecError(
        f"no command {first!r}{suggestion}",
        expected=", ".join(groups),
        fix="scaleproof --help",
    )


def run(words: Sequence[str]) -> Answer:
    known = commands()
    if (screen := _screen(words, known)) is not None:
        text.write(screen, sys.stdout)
        return Answer(document=None, lines=screen)
    mine = _split(words)[0]
    is_command = mine[0] in known or " ".join(mine[:2]) in known
    if not is_command and index.subcommands(mine[0], list(known)):
        return _group(mine, known)
    asked = parsed(words)
    answer: Answer = _imported(known[asked.command]).act(asked)
    if asked.options.json:
        sys.stdout.write(json.dumps(to_doc(answer.document), indent=1) + "\n")
    else:
        text.write(answer.lines, sys.stdout)
    if asked.options.json or getattr(asked.options, "csv", False):
        text.write(answer.warnings, sys.stderr)
    if answer.error is not None:
        raise answer.error
    return answer


def parsed(words: Sequence[str]) -> Asked:
    """Return the command that ``words`` name, with its options.

    Raise SpecError if there is no such command or if the options are invalid.
    """
    known = commands()
    mine, script_words = _split(words)
    name, rest = resolve(mine, known)
    shows_all = "--help-all" in rest
    rest = ["--help" if word == "--help-all" else word for word in rest]
    parsing = parser(name, known[name], shows_all=shows_all)
    given = parsing.parse_args(rest)
    _find_runs(given, parsing)
    if script_words and not getattr(given, "script", False):
        parsing.error(f"unrecognized arguments: {' '.join(script_words)}")
    typed = [*name.split(), *rest, *words[len(mine) :]]
    return Asked(command=name, options=given, words=typed, script=script_words)


def _find_runs(given: argparse.Namespace, parsing: Parser) -> None:
    """Replace identifiers of runs by their folders in the arguments that name runs to read.

    These are arguments without an option, and options for a ``RUN``. An option for an output, such
    as ``--to``, keeps its value.
    """
    for action in parsing.actions():
        value = getattr(given, action.dest, None)
        reads = action.metavar == "RUN" or (not action.option_strings and action.type is Path)
        if reads and isinstance(value, list):
            setattr(given, action.dest, [_run_folder(path) for path in value])
        elif reads and value is not None:
            setattr(given, action.dest, _run_folder(value))


def _run_folder(path: Path | str) -> Path | str:
    """Return the folder of a run that is named by its identifier alone, otherwise the path."""
    if not _RUN.fullmatch(str(path)) or Path(path).exists():
        return path
    folders = list(options.usual_results().glob(f"runs/*/{path}"))
    return type(path)(folders[0]) if len(folders) == 1 else path


def _screen(words: Sequence[str], known: Mapping[str, Path]) -> list[str] | None:
    """Return the lines of the start screen, the version or an index of help, or None."""
    width = text.columns()
    if not words:
        return index.start(width)
    if words[0] in ("-V", "--version"):
        return [f"scaleproof {version('scaleproof')}"]
    if words[0] == "--help-all":
        return index.whole(_sentences(known), width)
    return index.overview(list(known), width) if words[0] in ("-h", "--help", "help") else None


def _group(words: Sequence[str], known: Mapping[str, Path]) -> Answer:
    """Print the subcommands of a group that is no command itself.

    Raise SpecError if a second word names no subcommand.
    """
    group = words[0]
    if words[1:] and not words[1].startswith("-"):
        names = index.subcommands(group, list(known))
        raise SpecError(
            f"no command '{group} {words[1]}'{nearest(words[1], names)}",
            expected=", ".join(names),
            fix=f"scaleproof {group} --help",
        )
    lines = index.of_group(group, _sentences(known), text.columns())
    lines = [f" usage: scaleproof {group} SUBCOMMAND [OPTIONS]", "", *lines]
    text.write(lines, sys.stdout)
    return Answer(document=None, lines=lines)


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the words of this program and the words of a user's script, which follow ``--``."""
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def commands() -> dict[str, Path]:
    """Return the file of each command."""
    return {name: path for path in files() for name in _help(path)}


def files() -> list[Path]:
    """Return the files of all commands, including the commands of features, sorted by name."""
    there = [*COMMANDS.glob("[!_]*.py"), *heads.files("HELP")]
    return sorted(there, key=lambda path: path.name)


#: Most characters of choices, ``{a,b,c}``, in a usage line. The help text lists longer ones.
MOST_CHOICES = 40


class _Formatter(argparse.HelpFormatter):
    """A formatter that keeps the lines of examples and subcommands and wraps all other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        keeps = text.startswith(("examples:", "subcommands:"))
        return text if keeps else super()._fill_text(text, width, indent)


def _list_choices(action: argparse.Action) -> None:
    """Move the choices of an option to its help text if its usage would be too long."""
    listed = ", ".join(map(str, action.choices or ()))
    if len(listed) > MOST_CHOICES and action.metavar is None and action.help != argparse.SUPPRESS:
        action.metavar = action.dest.upper() if action.option_strings else action.dest
        action.help = f"{action.help or ''} (one of {listed})".strip()


def _help(path: Path) -> Mapping[str, str]:
    help_of: Mapping[str, str] = read_head(path)[1].get("HELP", {})
    return help_of


def _sentences(known: Mapping[str, Path]) -> dict[str, str]:
    return {name: _help(path)[name] for name, path in known.items()}


def _imported(path: Path) -> ModuleType:
    return importlib.import_module(heads.name_of(path))


def parser(name: str, path: Path, *, shows_all: bool = False) -> Parser:
    """Return the parser of one command, whose file is ``path``."""
    module = _imported(path)
    sentence = module.HELP[name]
    known = commands()
    epilog = ["examples:"]
    for words in module.EXAMPLES[name]:
        epilog += text.wrap_command(f"  scaleproof {words}", text.columns(), 2)
    if names := index.subcommands(name, list(known)):
        about = index.of_group(name, _sentences(known), text.columns())
        epilog = ["subcommands:", *about, "", *epilog] if names else epilog
    parsing = Parser(
        prog=f"scaleproof {name}",
        description=sentence[:1].upper() + sentence[1:] + ".",
        allow_abbrev=False,
        epilog="\n".join(epilog),
        formatter_class=_Formatter,
        shows_all=shows_all,
    )
    parsing.add_argument("--json", action="store_true", help="print one JSON document")
    module.add_to(parsing, name)
    for action in parsing.actions():
        _list_choices(action)
    return parsing
