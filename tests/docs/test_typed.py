"""Every command of the README and of the pages works as it is printed, and so do those it prints.

Commands are typed at 80 columns in a copy of this repository, page by page and in order.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
#: What a reader puts in the place of each placeholder.
_MEANT = {
    "results/runs/CLASS/RUN": "results/samples/ddp-nano",
    "timeline A --against B": "timeline results/samples/ddp-nano --against results/samples/ddp-nano-again",
    "timeline rank*.json.gz": "timeline results/samples/ddp-nano/launches/1bf8f6-p00-2-0024/rank*.json.gz",
    "timeline T.json": "timeline results/samples/ddp-nano",
    "--merge DIR": "--merge merged",
    "thresholds thresholds.toml RUN": "thresholds suites/thresholds.toml RUN",
    "RUN": "results/samples/ddp-nano",
    "origin/main": "HEAD",
    "--base main": "--base HEAD",
    '--key site.pub --nonce "tender 17"': "",  # the sample is not signed
    "-- train.py": "-- examples/training/train.py",
    "~/token": "token",
    "/var/lib/node_exporter/": "",
}  # fmt: skip
#: Commands that begin so are not typed: they measure for many minutes or are typed by other tests.
_ELSEWHERE = (
    "scaleproof history nightly", "pytest suites/", "pytest tests", "python -m tests",
    "python scripts/gpu_acceptance", "python benchmarks", "scaleproof compare bisect", "asv run",
    "scaleproof compare pr", "scaleproof jobs join",
)  # fmt: skip
#: Commands that end with 1 if they find a node unfit, which background load or a plant makes it.
_FINDS = ("scaleproof check nodes", "scaleproof network pairs", "scaleproof network isolate")
#: Words of commands that need hardware, a service, or files that the reader has to write.
_NEEDS = re.compile(
    r"--gpus|--engine (slurm|hosts)|localhost|wandb|site_key|CHECKED|ladder\.json|10\.0\.0\.1"
    r"|contract\.toml|jobs (cancel|collect)|mlflow|--path models|rules\.toml"
)
_LABELS = r"all|next|again|fixed\?|compare|rerun|report|page|try"
#: Printed commands that only read, and are therefore typed as well.
_READS = re.compile(r"scaleproof (report|verify|history|compare|check|run list|\S+ --help)\b")


def lines_of(page: Path) -> list[str]:
    """Return the commands of a page in their order, with the reader's own words inserted."""
    words = page.read_text()
    blocks = re.findall(r"```sh\n(.*?)```", words, re.S)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", words, re.M) if page.stem == "README" else []
    typed = []
    for line in (line.split("  #")[0].strip() for line in lines):
        for word, meant in _MEANT.items():
            end = r"(?!\w)" if word[-1].isalnum() else ""
            line = re.sub(rf"(?<![\w/]){re.escape(word)}{end}", meant, line)
        if line.startswith(("scaleproof", "pytest", "python")) and not line.startswith(_ELSEWHERE):
            typed.append(line)
    return list(dict.fromkeys(typed))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that git knows, as a repository of its own."""
    folder = tmp_path_factory.mktemp("typed") / "clone"
    names = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    for name in names:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def typed(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    env = {**os.environ, "COLUMNS": "80", "PATH": path, "PYTHONPATH": str(folder)}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
    )


def too_wide(output: str) -> Iterator[str]:
    """Yield lines over 80 columns, except errors (one line each in a log) and paths."""
    sentence = re.compile(
        r"ERROR: |  expected  |  try       |usage:|\w+: error|WARNING|http| page    \S+$"
    )
    yield from (x for x in output.splitlines() if len(x) > 80 and not sentence.match(x))


def printed(output: str) -> Mapping[str, str]:
    """Return the commands that a screen proposes, by their label."""
    joined = re.sub(r" \\\n +", " ", output)
    joined = re.sub(r":\n +(?=scaleproof |pytest |asv )", ": ", joined)
    found = re.findall(rf"^ +({_LABELS}) +(.*?: )?((?:scaleproof|pytest|asv) .*)$", joined, re.M)
    return {label: re.split(r"; | && ", command)[0] for label, _, command in found}


@pytest.mark.full
@pytest.mark.parametrize(
    ("page", "line"),
    [
        pytest.param(page, line, id=f"{page.stem}-{line}")
        for page in PAGES
        for line in lines_of(page)
    ],
)
def test_a_printed_command_works(page: Path, line: str, clone: Path) -> None:
    folder = clone / "examples/training" if page.stem == "your_own_training" else clone
    if folder != clone:
        line = line.replace("examples/training/", "")
    done = typed(line, folder)
    said = done.stdout + done.stderr
    # 5: nothing was judged; 10: other processes ran; 4: this machine lacks what the line asks for.
    allowed = {0, 5, 10} | ({4} if _NEEDS.search(line) else set())
    allowed |= {1} if line.startswith(_FINDS) else set()
    assert done.returncode in allowed, f"{done.returncode}\n{said}"
    assert "Traceback" not in said
    if done.returncode == 4:
        assert re.search(r"^  try +\S", said, re.M), said
    if not re.search(
        r"--(json|csv|markdown|toml|rules|proposal|dry-run)\b|pytest |python |completion", line
    ):
        assert list(too_wide(said)) == []
    for command in printed(said).values():
        if _READS.match(command) and not _NEEDS.search(command):
            again = typed(command, folder)
            assert again.returncode in (0, 5, 10), f"{command}: {again.returncode}\n{again.stderr}"
