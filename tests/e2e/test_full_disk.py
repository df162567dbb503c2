"""A full results disk is reported once, no file is truncated, and the run can be resumed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record.store import load

ROOT = Path(__file__).parents[2]


def on_disk_of_its_own(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that may mount a private file system; skip the test if this is not permitted."""
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    return done


@pytest.mark.full
@pytest.mark.parametrize("size", ["150k", "450k"])
def test_a_run_survives_a_full_disk_and_goes_on_when_there_is_room(
    tmp_path: Path, size: str
) -> None:
    disk, out = tmp_path / "disk", tmp_path / "out"
    disk.mkdir()
    out.mkdir()
    scaleproof = shlex.join([sys.executable, "-m", "harness", "run"])
    script = f"""
        mount -t tmpfs -o size={size} results {disk} || exit 77
        {scaleproof} ddp/mlp-nano/weak --cpus 2 --results {disk} > {out}/first 2>&1
        echo $? > {out}/first.status
        run=$(ls -d {disk}/runs/*/*) && cp -r $run {out}/kept
        mount -o remount,size=100m {disk}
        {scaleproof} --resume $run > {out}/second 2>&1
        echo $? > {out}/second.status
        cp -r $run {out}/whole
    """
    on_disk_of_its_own(script)
    first = (out / "first").read_text()
    assert (out / "first.status").read_text().strip() == "11", first
    assert first.count("no space is left on this disk") == 1
    assert "--resume" in first.splitlines()[-1]
    assert "Traceback" not in first
    kept = load(out / "kept")  # readable, but not complete
    assert not kept.complete
    second = (out / "second").read_text()
    assert (out / "second.status").read_text().strip() in ("0", "1", "5", "10"), second
    whole = load(out / "whole")
    assert whole.complete
    names = {x.launch for x in kept.launches}
    assert names and names <= {x.launch for x in whole.launches}, "nothing measured was lost"
    assert json.loads((out / "whole" / "record.json").read_text())["run"] == kept.run


@pytest.mark.full
def test_a_disk_without_room_for_a_run_is_refused_before_any_launch(tmp_path: Path) -> None:
    """The message must not advise --resume, because there is no run yet."""
    disk, said_file = tmp_path / "disk", tmp_path / "said"
    disk.mkdir()
    command = shlex.join([sys.executable, "-m", "harness", "run"])
    script = f"""
        mount -t tmpfs -o size=60k results {disk} || exit 77
        {command} ddp/mlp-nano/weak --cpus 2 --results {disk} > {said_file} 2>&1
    """
    done = on_disk_of_its_own(script)
    text = said_file.read_text()
    assert done.returncode == 11 and "no space is left on this disk" in text
    assert "nothing was launched" in text and "--resume" not in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("pack results/samples/ddp-nano --to {disk}/a.tar.gz", "a.tar.gz"),
        ("export results/samples/ddp-nano --table steps --to {disk}/a.csv", "a.csv"),
        ("handover results/samples/ddp-nano --to {disk}/a", "a/runs.tar.gz"),
        ("site results/samples --to {disk}/site", "site/index.html"),
        ("init {disk}/a", "a/test_scaling.py"),  # there is room for one of its two files
    ],
)
def test_a_file_that_does_not_fit_is_removed_instead_of_truncated(
    tmp_path: Path, words: str, file: str
) -> None:
    disk, written = tmp_path / "disk", tmp_path / "written"
    disk.mkdir()
    command = f"{shlex.quote(sys.executable)} -m harness {words.format(disk=disk)}"
    script = f"""
        mount -t tmpfs -o size=8k results {disk} || exit 77
        head -c 4000 /dev/zero > {disk}/other
        {command}; status=$?
        find {disk} -type f > {written}
        exit $status
    """
    done = on_disk_of_its_own(script)
    assert done.returncode == 11 and "no space is left on this disk" in done.stderr, done.stderr
    left = written.read_text().splitlines()
    assert left == [str(disk / "other")], f"{file} was to be whole, or not there"
