"""Adding runs to the history: refusals, any order, concurrent calls, kills at any point, damaged
files.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from harness.base.errors import RecordError
from harness.features.history import asv_results, ledger
from harness.features.history.asv_page import publish
from harness.features.history.commands.history import comparable
from harness.features.history.ingest import ingest
from harness.features.history.night import keep, night_of, nights
from harness.interface.cli.main import main
from harness.record import Purpose
from harness.record.store import load
from tests.nights import CASE, SUBJECT, night

ROOT = Path(__file__).parents[3]
SAMPLES = [ROOT / "tests/golden/samples" / name for name in ("ddp-nano", "ddp-nano-again")]


def contents(results: Path) -> dict[str, str]:
    """Return the contents of every file of nightly runs and of asv's results."""
    paths = [*(results / "nights").glob("*"), *(results / "asv").rglob("*.json")]
    return {str(p.relative_to(results)): p.read_text() for p in sorted(paths)}


def commits(results: Path) -> list[str]:
    return list(ledger.commits(results / asv_results.LEDGER).values())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return results with both samples added without any disturbance."""
    results = tmp_path_factory.mktemp("whole")
    ingest(SAMPLES, results)
    return results


def test_only_commits_with_a_case_in_common_are_compared(tmp_path: Path, whole: Path) -> None:
    results = shutil.copytree(whole, tmp_path / "results")
    (machine,) = (folder.name for folder in (results / "asv").iterdir() if folder.is_dir())
    assert comparable(results, machine) is not None
    newest = max(
        (p for p in (results / "asv" / machine).glob("*-*.json")),
        key=lambda path: json.loads(path.read_text())["date"],
    )
    newest.write_text(newest.read_text().replace("decoder-nano", "decoder-tiny"))
    assert comparable(results, machine) is None


def test_a_run_is_added_once(tmp_path: Path, whole: Path) -> None:
    first = ingest(SAMPLES[:1], tmp_path)
    assert [x.new for x in first] == [True] and first[0].num_values > 5
    assert [x.new for x in ingest(SAMPLES, tmp_path)] == [False, True]
    assert contents(tmp_path) == contents(whole) and commits(tmp_path) == commits(whole)


def test_every_figure_of_the_sample_has_a_unit_and_a_value(whole: Path) -> None:
    (kept,) = [n.cases["ddp/decoder-nano/weak@2cpu"] for n in nights(whole)][:1]
    assert {*kept.values} == {
        "step_time", "scaling_loss", "exposed_communication", "peak_memory", "wire_bytes",
        "launch_cost",
    }  # fmt: skip
    assert kept.values["wire_bytes"].value == pytest.approx(919_808, rel=0.01)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (dict(complete=False), "was interrupted"),
        (dict(software={"torch": "2", "suite": "abc-dirty"}), "uncommitted changes"),
    ],
)
def test_incomplete_or_uncommitted_runs_are_refused(
    edit: dict[str, object], message: str, tmp_path: Path
) -> None:
    run = dataclasses.replace(load(SAMPLES[0]), **edit)  # type: ignore[arg-type]
    with pytest.raises(RecordError, match=message):
        night_of(run, tmp_path)


def test_a_run_with_only_profiles_is_refused(tmp_path: Path) -> None:
    run = load(SAMPLES[0])
    kept = tuple(x for x in run.launches if x.purpose is not Purpose.TIMED)
    with pytest.raises(RecordError, match="only profiles"):
        night_of(dataclasses.replace(run, launches=kept), tmp_path)


def test_valid_runs_are_added_if_others_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "history",
        "add",
        str(tmp_path),
        *map(str, SAMPLES),
        "--results",
        str(tmp_path / "results"),
    ]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"not added: {tmp_path}" in out and len(nights(tmp_path / "results")) == 2
    assert main(["history", "add", str(tmp_path), "--results", str(tmp_path)]) == 4, (
        "a refused run without a valid one is an error"
    )


def test_a_comparison_of_environments_is_refused(tmp_path: Path) -> None:
    run = load(SAMPLES[0])
    plans = [
        dataclasses.replace(
            plan,
            arms=tuple(
                dataclasses.replace(arm, case=dataclasses.replace(arm.case, setup="2.13"))
                for arm in plan.arms
            ),
        )
        for plan in run.plans
    ]
    with pytest.raises(RecordError, match="environment of the run itself"):
        night_of(dataclasses.replace(run, plans=tuple(plans)), tmp_path)


def test_replacing_a_node_by_an_equal_one_continues_the_series(tmp_path: Path) -> None:
    run = load(SAMPLES[0])
    other = dataclasses.replace(run.machine, host="spare-17", kernel="9.9.9")
    swapped = dataclasses.replace(run, machine=other)
    a, b = night_of(run, tmp_path), night_of(swapped, tmp_path)
    assert a == b


ORDERS = st.permutations(range(6))


@settings(max_examples=6)
@given(order=ORDERS, cut=st.integers(1, 5))
def test_the_order_of_ingestion_does_not_matter(
    order: list[int], cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    all_nights = [night(i, {CASE: 0.1 + i / 100}) for i in range(6)]
    apart, together = (tmp_path_factory.mktemp("order") for _ in range(2))
    for some in (order[:cut], order[cut:]):
        for i in some:
            keep(all_nights[i], apart)
        asv_results.write(apart, nights(apart))
    for one in all_nights:
        keep(one, together)
    asv_results.write(together, nights(together))
    assert commits(apart) == commits(together) and len(commits(apart)) == 6
    assert contents(apart) == contents(together)


def test_results_of_asv_run_move_with_their_nightly_run(tmp_path: Path) -> None:
    keep(night(3, {CASE: 0.1}), tmp_path)
    (old,) = asv_results.write(tmp_path, nights(tmp_path)).values()
    path = tmp_path / f"asv/8x-h100/{old[:8]}-scaleproof.json"
    document = json.loads(path.read_text())
    document["results"]["core.time_list"] = [[0.07], [], "1"]
    path.write_text(json.dumps(document))
    keep(night(1, {CASE: 0.1}), tmp_path)
    _, new = asv_results.write(tmp_path, nights(tmp_path)).values()
    assert new != old and not path.exists()
    moved = json.loads((tmp_path / f"asv/8x-h100/{new[:8]}-scaleproof.json").read_text())
    assert moved["results"]["core.time_list"][0] == [0.07] and moved["commit_hash"] == new


def test_the_ledger_tags_each_new_version(tmp_path: Path) -> None:
    for i in range(4):
        keep(night(i, {CASE: 0.1}, subject={**SUBJECT, "torch": f"2.{13 + i // 2}.0"}), tmp_path)
    asv_results.write(tmp_path, nights(tmp_path))
    git = ["git", "--git-dir", str(tmp_path / "axis.git")]
    tags = subprocess.run([*git, "tag"], capture_output=True, text=True, check=True).stdout.split()
    assert tags == ["driver-580.1", "suite-aaaa", "torch-2.13.0", "torch-2.14.0"]
    words = [*git, "diff", "--unified=0", "main~2", "main"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert '+ "torch": "2.14.0"' in shown and "driver" not in shown


KILLED_AT = [
    "harness.features.history.night.keep",
    "harness.features.history.ledger._import",
    "harness.features.history.asv_results._moved",
    "harness.features.history.asv_results._write",
    "harness.features.history.asv_results._write_json",
]
KILL = """
import os, signal, sys
from pathlib import Path
from pkgutil import resolve_name
where, when = sys.argv[1], sys.argv[2]
holder, _, name = where.rpartition(".")
owner = resolve_name(holder)
real = getattr(owner, name)
def killed(*a, **k):
    if when == "after":
        real(*a, **k)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(owner, name, killed)
from harness.features.history import ingest
if where.endswith("night.keep"):
    ingest.keep = killed
ingest.ingest([Path(p) for p in sys.argv[4:]], Path(sys.argv[3]))
"""


@pytest.mark.few(3)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", KILLED_AT)
def test_the_next_call_repairs_after_a_kill_at_any_point(
    where: str, when: str, tmp_path: Path, whole: Path
) -> None:
    ingest(SAMPLES[:1], tmp_path)
    words = [sys.executable, "-c", KILL, where, when, str(tmp_path), str(SAMPLES[1])]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    ingest(SAMPLES[1:], tmp_path)
    assert contents(tmp_path) == contents(whole) and commits(tmp_path) == commits(whole)


def test_concurrent_calls_lose_no_run(tmp_path: Path, whole: Path) -> None:
    code = "import sys; from pathlib import Path; from harness.features.history.ingest import *;"
    code += " ingest([Path(sys.argv[2])], Path(sys.argv[1]))"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(run)], cwd=ROOT)
        for run, _ in itertools.product(SAMPLES, range(2))
    ]
    assert [p.wait() for p in running] == [0] * 4
    assert contents(tmp_path) == contents(whole) and commits(tmp_path) == commits(whole)


BROKEN = {
    "ledger without its head": "rm axis.git/HEAD",
    "ledger without an object": "rm -rf axis.git/objects/??",
    "ledger without its branch": "rm -f axis.git/refs/heads/main axis.git/packed-refs",
    "ledger gone": "rm -rf axis.git",
    "torn result": "for f in asv/*/*scaleproof.json; do echo '{' > $f; done",
    "torn machine": "for f in asv/*/machine.json; do echo '{' > $f; done",
    "torn list": "echo '{' > asv/benchmarks.json",
    "results gone": "rm -rf asv",
}


@pytest.mark.parametrize("what", BROKEN)
def test_damaged_derived_files_are_rebuilt(what: str, tmp_path: Path, whole: Path) -> None:
    ingest(SAMPLES, tmp_path)
    subprocess.run(BROKEN[what], shell=True, cwd=tmp_path, check=True)
    ingest(SAMPLES[:1], tmp_path)
    assert contents(tmp_path) == contents(whole), what
    assert commits(tmp_path) == commits(whole), what


def test_an_unreadable_nightly_run_is_reported(tmp_path: Path) -> None:
    ingest(SAMPLES, tmp_path)
    path = next((tmp_path / "nights").iterdir())
    path.write_text("{")
    with pytest.raises(RecordError, match="not an entry of the history") as error:
        ingest(SAMPLES[:1], tmp_path)
    assert str(path) in error.value.fix or "rm" in error.value.fix


@pytest.mark.full
def test_a_full_disk_loses_no_nightly_run(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    call = f"{sys.executable} -m harness ingest --results {disk}"
    script = f"""
        mount -t tmpfs -o size=200k results {disk} || exit 77
        {call} {SAMPLES[0]} || exit 1
        head -c 1m /dev/zero > {disk}/filler 2>/dev/null
        {call} {SAMPLES[1]} 2> {tmp_path}/said && exit 2
        rm {disk}/filler
        {call} {SAMPLES[1]} || exit 3
        ls {disk}/nights | wc -l > {tmp_path}/count
        ls {disk}/asv/*/*scaleproof.json | wc -l >> {tmp_path}/count
    """
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ},
    )  # fmt: skip
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "count").read_text().split() == ["2", "2"]
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_nothing_that_a_received_ledger_names_is_run(tmp_path: Path) -> None:
    """The ledger came with somebody else's results: hooks, a signature's program, a module asv."""
    ingest(SAMPLES[:1], tmp_path)
    ledger_there = tmp_path / asv_results.LEDGER
    (ledger_there / "hooks").mkdir(exist_ok=True)
    intruder = tmp_path / "intruder"
    intruder.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    intruder.chmod(0o755)
    for name in ("reference-transaction", "post-update", "post-index-change"):
        (ledger_there / "hooks" / name).symlink_to(intruder)
    program = f"[log]\n\tshowSignature = true\n[gpg]\n\tprogram = {intruder}\n"
    with (ledger_there / "config").open("a") as config:
        config.write(f"{program}[core]\n\tfsmonitor = {intruder}\n")
    (tmp_path / "asv.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    ingest(SAMPLES, tmp_path)
    publish(tmp_path, (), ledger.commits(ledger_there))
    assert not (tmp_path / "ran").exists() and (tmp_path / "html" / "index.html").exists()


def test_a_ledger_that_is_a_link_is_rebuilt_and_its_target_kept(tmp_path: Path) -> None:
    own = tmp_path / "own"
    subprocess.run(["git", "init", "-q", str(own)], check=True)
    config = (own / ".git/config").read_bytes()
    results = tmp_path / "results"
    results.mkdir()
    (results / asv_results.LEDGER).symlink_to(own / ".git")
    ingest(SAMPLES[:1], results)
    assert commits(results) and not (results / asv_results.LEDGER).is_symlink()
    assert (own / ".git/config").read_bytes() == config


def test_the_suggested_commands_work_outside_of_a_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["history"]) == 4
    assert "try       scaleproof run suites --cpus 2" in capsys.readouterr().err
    run = tmp_path / "results/runs/c607/a"
    shutil.copytree(SAMPLES[0], run)
    assert main(["history"]) == 4
    assert (
        f"try       scaleproof history add {run.relative_to(tmp_path)}" in capsys.readouterr().err
    )
    assert main(["history", "add", *map(str, SAMPLES)]) == 0
    shown = capsys.readouterr().out.replace("\\\n", "")
    (compare,) = re.findall(r"^ compare  asv (.*)$", shown, re.M)
    words = [sys.executable, "-m", "asv", *shlex.split(compare)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "records.track_step_time" in done.stdout, done.stderr
