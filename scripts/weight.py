"""Print lines and files by folder, compared with another commit.

    python scripts/weight.py [COMMIT]      # default: the last tag, else BEFORE

Lines of Python files are counted, blank lines included. A pull request that adds code quotes this
table, so that growth is a decision.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
FOLDERS = ("harness", "suites", "benchmarks", "scripts", "examples", "tests")
#: The commit to compare with if there is no tag. It is the last one before the current layout of
#: files, with 87,758 lines in 640 files of harness/.
BEFORE = "612795bd"


def main() -> None:
    known = _git("describe", "--tags", "--abbrev=0").strip()
    commit = sys.argv[1] if len(sys.argv) > 1 else known or BEFORE
    now_lines, now_files = _here()
    old_lines, old_files = _at(commit)
    print(f"{'folder':<22}{'lines':>8}{'files':>7}{commit[:10]:>14}{'files':>7}")
    for folder in sorted({*now_lines, *old_lines}):
        print(
            f"{folder:<22}{now_lines[folder]:>8,}{now_files[folder]:>7}"
            f"{old_lines[folder]:>14,}{old_files[folder]:>7}"
        )
    for top in ("harness", "tests"):
        sums = [
            sum(count for folder, count in counter.items() if folder.split("/")[0] == top)
            for counter in (now_lines, now_files, old_lines, old_files)
        ]
        print(f"{top + ' (all)':<22}{sums[0]:>8,}{sums[1]:>7}{sums[2]:>14,}{sums[3]:>7}")


def _here() -> tuple[Counter[str], Counter[str]]:
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            if "__pycache__" not in path.parts:
                name = _name(path.relative_to(ROOT).as_posix())
                lines[name] += path.read_text(encoding="utf-8").count("\n")
                files[name] += 1
    return lines, files


def _at(commit: str) -> tuple[Counter[str], Counter[str]]:
    """Return the numbers of lines and files of each folder in a commit.

    Both are empty if this clone does not have the commit.
    """
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    # git prints a line for each file: the number of matches of the empty pattern, which is the
    # number of its lines.
    counted = _git("grep", "-c", "", commit, "--", *(f"{folder}/*.py" for folder in FOLDERS))
    for row in counted.splitlines():
        _, path, count = row.split(":")
        lines[_name(path)] += int(count)
        files[_name(path)] += 1
    return lines, files


def _name(path: str) -> str:
    """Return the folder in which a file is counted: two levels in harness/, one elsewhere."""
    parts = PurePosixPath(path).parts
    deep = parts[0] == "harness" and len(parts) > 2
    return "/".join(parts[:2]) if deep else parts[0]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout


if __name__ == "__main__":
    main()
