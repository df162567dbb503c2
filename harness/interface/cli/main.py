"""``scaleproof``: parse the words, run one verb, print its answer, leave with its status.

Verbs are the files of ``verbs/``, here and in features: their heads are read to know what there is,
and only the one that was asked for is imported.
"""

import argparse
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from harness.base import host_errors, pipes
from harness.base.documents import to_doc
from harness.base.errors import Exit, LaunchError, RecordError, ScaleproofError, SpecError, nearest
from harness.cases import heads
from harness.cases.heads import read_head
from harness.interface import offered
from harness.interface.cli import index
from harness.interface.cli.answer import Answer, Asked
from harness.interface.report import text
from harness.record import chain
from harness.record.store import load

VERBS = Path(__file__).parent / "verbs"


class Parser(argparse.ArgumentParser):
    """argparse with this program's exit status and suggestions for what was mistyped."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.verbs: dict[str, Parser] = {}

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
        raise SpecError(message, fix=f"{self.prog} --help")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse, but a word that a verb does not know is told by the verb."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            (self.verbs.get(parsed.verb) or self).error(f"unrecognized arguments: {' '.join(left)}")
        return parsed

    def known(self) -> list[str]:
        """Its options."""
        return [option for action in self._actions for option in action.option_strings]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; its exit status, which does not depend on whether somebody reads along."""
    if "_ARGCOMPLETE" in os.environ:
        _complete(os.environ["COMP_LINE"].split())
    with pipes.kept_open() as streams:
        status = _main(list(sys.argv[1:] if argv is None else argv))
    return status or (int(Exit.ERROR) if streams.lost else 0)


def _main(words: Sequence[str]) -> int:
    try:
        offered.refuse_unknown_variables()
        answer = run(words)
    except ScaleproofError as error:
        return _told(error, words)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return int(Exit.INTERRUPTED)
    except OSError as error:
        return _told(host_errors.by_host(error) or host_errors.in_words(error), words)
    except subprocess.CalledProcessError as error:
        return _told(_failed(error), words)
    except Exception as bug:
        if (lacking := host_errors.by_host(bug)) is not None:
            return _told(lacking, words)
        if (damaged := _damaged(words, bug)) is not None:
            return _told(damaged, words)
        traceback.print_exc()
        sys.stderr.write("ERROR: this is a bug in scaleproof; the lines above show where\n")
        return int(Exit.INTERNAL)
    return int(answer.exit)


def _failed(error: subprocess.CalledProcessError) -> LaunchError:
    """Another program's failure, which says nothing of any record."""
    command = error.cmd if isinstance(error.cmd, str) else shlex.join(map(str, error.cmd))
    output = str(error.stderr or error.output or "").strip().splitlines() or ["it said nothing"]
    return LaunchError(
        f"a program that is needed left with status {error.returncode}: {output[-1]}",
        where=command[:200],
        expected="exit status 0",
        fix=command,
    )


def _told(error: ScaleproofError, words: Sequence[str]) -> int:
    """Say what is wrong, to whoever asked; the exit status."""
    if "--json" in _split(words)[0]:
        document = {"error": error.what, "where": error.where, "expected": error.expected}
        sys.stdout.write(json.dumps({**document, "try": error.fix}, indent=1) + "\n")
    text.write(f"ERROR: {error}".splitlines(), sys.stderr)
    return int(error.exit)


def _damaged(words: Sequence[str], bug: Exception) -> RecordError | None:
    """The error where a verb broke on a record that it was given, a stranger's perhaps."""
    from harness.analysis.verify import verify  # what most verbs do not need

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
        except Exception as broken:  # whatever breaks in here breaks on the record
            if host_errors.by_host(broken) is not None:
                raise
            differences = ("its figures contradict each other",)
        senseless[folder] = differences[0] if differences else ""
    if not senseless:
        return None
    folder = next((f for f, why in senseless.items() if why), next(iter(senseless)))
    what = senseless[folder] or f"{type(bug).__name__}: {bug}"
    return RecordError(
        f"this record makes no sense: {what[:300]} ({Path(frame.filename).name}:{frame.lineno})",
        where=str(folder),
        expected="a record as it was measured; if this one is, scaleproof has a bug there",
        fix=f"scaleproof verify {folder}",
    )


def _complete(words: Sequence[str]) -> NoReturn:
    """Answers a shell at TAB, after ``eval "$(register-python-argcomplete scaleproof)"``."""
    import argcomplete

    argcomplete.autocomplete(parser(module_of(words)))
    raise SystemExit(Exit.INTERNAL)  # autocomplete has left already


def module_of(words: Sequence[str]) -> ModuleType | None:
    """The file of the verb that is asked for."""
    known = verbs()
    file = next((known[word] for word in words if word in known), None)
    if file is None:
        return None
    return importlib.import_module(heads.name_of(file))


def run(words: Sequence[str]) -> Answer:
    words = index.verb_of(words, verbs())
    if (screen := _screen(words)) is not None:
        text.write(screen, sys.stdout)
        return Answer(document=None, lines=screen)
    mine, script_words = _split(words)
    module = module_of(mine)
    parsed = parser(module).parse_args(mine)
    assert module is not None
    if script_words and not getattr(parsed, "script", False):
        parser(module).verbs[parsed.verb].error(f"unrecognized arguments: {' '.join(script_words)}")
    answer: Answer = module.act(
        Asked(verb=parsed.verb, options=parsed, words=words, command=script_words)
    )
    if parsed.json:
        sys.stdout.write(json.dumps(to_doc(answer.document), indent=1) + "\n")
    else:
        text.write(answer.lines, sys.stdout)
    if parsed.json or getattr(parsed, "csv", False):
        text.write(answer.warnings, sys.stderr)
    if answer.error is not None:
        raise answer.error
    return answer


def _screen(words: Sequence[str]) -> list[str] | None:
    """The screen where no verb is asked for."""
    if not words:
        return index.start(text.columns())
    if words[0] not in ("-h", "--help", "help") and words[0] not in index.TASKS:
        return None
    known = verbs()
    if words[0] in known:
        return None
    helps = {verb: _help(path)[verb] for verb, path in known.items()}
    folders = {verb: path.parent.name for verb, path in known.items()}
    if words[0] in index.TASKS:
        helps = {verb: helps[verb] for verb in index.TASKS[words[0]][1] if verb in helps}
        return index.whole(helps, folders, text.columns())
    form = index.whole if "all" in words[1:] else index.overview
    return form(helps, folders, text.columns())


def _split(words: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """This program's words, and those of a script, which come after ``--``."""
    cut = words.index("--") if "--" in words else len(words)
    return words[:cut], words[cut + 1 :]


def verbs() -> dict[str, Path]:
    """Verb -> the file that has it."""
    return {verb: path for path in files() for verb in _help(path)}


class _Formatter(argparse.HelpFormatter):
    """Keeps the lines of examples as they are; everything else is wrapped as usual."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


def _examples(module: ModuleType | None, verb: str) -> str:
    """The examples that a help text ends with; only of the verb that is asked for."""
    if module is None or verb not in module.HELP:
        return ""
    return "\n".join(["examples:", *(f"  scaleproof {words}" for words in module.EXAMPLES[verb])])


def files() -> list[Path]:
    """The files of all verbs, those of features as well, sorted by name."""
    return sorted([*VERBS.glob("*/[!_]*.py"), *heads.files("HELP")], key=lambda path: path.name)


def _help(path: Path) -> Mapping[str, str]:
    help_of: Mapping[str, str] = read_head(path)[1].get("HELP", {})
    return help_of


def parser(module: ModuleType | None) -> Parser:
    """All verbs with their help; the options only of those that ``module`` has."""
    whole = Parser(prog="scaleproof", description=index.SAYS, allow_abbrev=False)
    whole.add_argument("--version", action="version", version=f"scaleproof {version('scaleproof')}")
    subparsers = whole.add_subparsers(dest="verb", required=True, metavar="VERB")
    for path in files():
        for verb, help_text in _help(path).items():
            sub = subparsers.add_parser(
                verb,
                help=help_text,
                description=help_text,
                allow_abbrev=False,
                epilog=_examples(module, verb),
                formatter_class=_Formatter,
            )
            sub.add_argument("--json", action="store_true", help="print one JSON document")
            whole.verbs[verb] = sub
            if module is not None and verb in module.HELP:
                module.add_to(sub, verb)
    return whole
