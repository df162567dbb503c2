"""Draw random docstrings, comments and messages of each folder, for a reader to mark.

    python scripts/prose.py [--number 50] [--seed 1] [FOLDER ..]    # default: every folder

A reader who has not seen the code marks each text that needs a second reading. At most 2 of 50
may be marked (CONTRIBUTING.md). Messages are string literals of three words or more.
"""

import argparse
import ast
import io
import random
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: Folders whose prose is reviewed; the folders of the package are reviewed one by one.
FOLDERS = (
    *(f"harness/{path.name}" for path in sorted((ROOT / "harness").iterdir()) if path.is_dir()),
    "suites",
    "scripts",
    "benchmarks",
    "examples",
    "tests",
)
#: A message has at least this many words; shorter literals are names and labels.
LEAST_WORDS = 3
WORD = re.compile(r"[A-Za-z]{2,}")
#: Comments for tools, not for readers.
TOOLING = re.compile(r"# (fmt|type|noqa|ruff|mypy|pragma)\b")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    parser.add_argument("--number", type=int, default=50, help="texts drawn from each folder")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for folder in options.folders:
        every = sorted(set(texts(ROOT / folder)))
        drawn = random.Random(options.seed).sample(every, min(options.number, len(every)))
        print(f"\n## {folder}: {len(drawn)} of {len(every)} texts")
        for number, (place, kind, text) in enumerate(drawn, 1):
            print(f"\n{number}. {kind}, {place}\n{text}")


def texts(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (place, kind, text) of every docstring, comment and message below a folder."""
    for path in sorted(folder.rglob("*.py")):
        if "__pycache__" in path.parts:
            continue
        source = path.read_text(encoding="utf-8")
        place = str(path.relative_to(ROOT))
        yield from ((f"{place}:{line}", kind, text) for line, kind, text in _of_source(source))


def _of_source(source: str) -> Iterator[tuple[int, str, str]]:
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, documented) and (text := ast.get_docstring(node)):
            first = node.body[0]
            assert isinstance(first, ast.Expr)
            docstrings.add(id(first.value))
            name = getattr(node, "name", "module")
            yield first.lineno, f"docstring of {name}", text
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for node in ast.walk(tree):
        text = ""
        if isinstance(node, ast.JoinedStr):
            text = ast.unparse(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = "" if id(node) in docstrings | parts else node.value
        if len(WORD.findall(text)) >= LEAST_WORDS and " " in text:
            yield node.lineno, "message", text
    yield from _comments(source)


def _comments(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield blocks of comment lines as one text each."""
    block: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or TOOLING.match(token.string):
            continue
        if block and token.start[0] != last + 1:
            yield begin, "comment", "\n".join(block)
            block = []
        if not block:
            begin = token.start[0]
        block.append(token.string)
        last = token.start[0]
    if block:
        yield begin, "comment", "\n".join(block)


if __name__ == "__main__":
    main()
