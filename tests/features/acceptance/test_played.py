"""The chapter docs/acceptance.md, played by two parties: agreement, measurement, handover, dispute."""

from __future__ import annotations

import datetime
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.record.store import load, save

ROOT = Path(__file__).parents[3]
CHAPTER = (ROOT / "docs" / "acceptance.md").read_text()
CONTRACT = ROOT / "examples" / "acceptance" / "contract.toml"


def commands() -> list[str]:
    """Return the nine commands of the chapter without their comments."""
    (block,) = re.findall(r"```sh\n(.*?)```", CHAPTER, re.S)
    return [line.partition("#")[0].strip() for line in block.splitlines()]


def play(command: str, folder: Path, words: dict[str, str]) -> tuple[int, str]:
    """Run a command in a party's folder and return its exit status and all its output."""
    for name, value in words.items():
        command = re.sub(rf"\b{name}\b", value, command)
    command, _, target = command.partition(" > ")
    done = subprocess.run(
        [sys.executable, "-m", "harness", *shlex.split(command)[1:]],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if target:
        (folder / target).write_text(done.stdout)
    return done.returncode, done.stdout + done.stderr


def statuses(text: str) -> dict[str, str]:
    """Return the status of each clause as printed on a screen."""
    return {name: word for word, name in re.findall(r"^ ([A-Z]+) +(\w+): ", text, re.M)}


def test_the_chapter_has_nine_commands_that_exist() -> None:
    assert len(commands()) == 9
    assert all(c.startswith("scaleproof ") for c in commands())


@pytest.mark.full
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="no ssh-keygen here")
def test_two_parties_agree_measure_and_settle_a_dispute(tmp_path: Path) -> None:
    supplier, buyer = tmp_path / "supplier", tmp_path / "buyer"
    for party in (supplier, buyer):
        party.mkdir()
    words: dict[str, str] = {}
    lines = commands()

    # Commands 1 to 3: both parties read the same file and get the same mark.
    status, text = play(lines[0], supplier, words)
    assert status == 0 and "of_accepted" in (supplier / "contract.toml").read_text()
    for party in (supplier, buyer):
        shutil.copy(CONTRACT, party / "contract.toml")
    marks = set()
    for party in (supplier, buyer):
        status, text = play(lines[1], party, words)
        match = re.search(r"put ([0-9a-f]{12}) into the --nonce", text)
        assert status == 0 and match is not None
        marks.add(match[1])
    (words["MARK"],) = marks
    words["GIVEN"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    assert play(lines[2], supplier, words)[0] == 0

    # Commands 4 and 5: the supplier measures and signs the run.
    keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "site_key"]
    subprocess.run(keygen, cwd=supplier, check=True)
    shutil.copy(supplier / "site_key.pub", buyer)
    status, text = play(lines[3], supplier, words)
    assert status == 1, text
    (run,) = (supplier / "results" / "runs").glob("*/*")
    words["RUN"] = str(run)
    assert play(lines[4], supplier, words)[0] == 0

    # Command 6: one clause passes, one fails, one is inconclusive.
    status, text = play(lines[5], supplier, words)
    expected = {"memory": "PASS", "memory_of_a_watch": "FAIL", "a_day": "INCONCLUSIVE"}
    assert status == 1 and statuses(text) == expected, text
    page = (supplier / "acceptance" / "handover.html").read_text()
    assert "NOT SIGNED" not in page and "cannot prove that these were agreed" not in page
    assert "for the buyer, Example Institute" in page and "within 14 days" in page

    # Commands 7 to 9: the buyer has only the folder that the supplier handed over.
    shutil.copytree(supplier / "acceptance", buyer / "acceptance")
    assert play(lines[6], buyer, words)[0] == 0
    (checked,) = (buyer / "checked" / "runs").glob("*/*")
    words["CHECKED"] = str(checked.relative_to(buyer))
    status, text = play(lines[7], buyer, words)
    assert status == 0 and "everything agrees" in text, text
    status, text = play(lines[8], buyer, words)
    assert status == 1 and statuses(text) == expected, text

    # The dispute: the supplier sends a second archive in which nothing fails.
    fake = tmp_path / "fake"
    shutil.copytree(run, fake)
    record = load(fake)
    better = [
        replace(v, value=9e6, low=8.9e6, high=9.1e6, pairs=(9e6,) * v.n) if v.value else v
        for v in record.verdicts
    ]
    save(replace(record, verdicts=tuple(better)), fake)
    assert (
        play(f"scaleproof accept pack {fake} --to {buyer}/second.tar.gz", supplier, words)[0] == 0
    )
    assert play("scaleproof accept unpack second.tar.gz --to second", buyer, words)[0] == 0
    (second,) = (buyer / "second" / "runs").glob("*/*")
    words["CHECKED"] = str(second.relative_to(buyer))
    status, text = play(lines[7], buyer, words)
    assert status == 1 and "recomputed" in text, text
    status, text = play(lines[8], buyer, words)
    assert status == 11 and "DOES NOT VERIFY" in text, text

    # A run with another nonce was not asked for by the buyer.
    other = lines[7].replace("tender 17", "tender 18")
    words["CHECKED"] = str(checked.relative_to(buyer))
    status, text = play(other, buyer, words)
    assert status == 1 and "nonce" in text
