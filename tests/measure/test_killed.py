"""A run is readable and resumable if its program is killed at any point."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.analysis.judging.verdicts import verdicts
from harness.analysis.reading import load
from harness.base.errors import RecordError
from harness.base.files import Lock
from harness.cases import Catalogue, Settings
from harness.measure import progress
from harness.measure.run import Run
from harness.record import RunRecord, chain

#: CPython's audit events of changes to the disk, which are raised before the change.
CHANGES = ("os.mkdir", "os.rename", "os.truncate", "os.remove")
#: More changes than the simulated run below makes.
MANY = 45


def begun(results: Path) -> Run:
    return Run(Catalogue(), Settings(), results, (), queued_s=lambda: 0.0)


def story(run: Run, of: RunRecord, tell: Callable[[int], None]) -> None:
    """Simulate a run by entering the launches of another one."""
    run.announce(of.plans)
    run.described.update(of.described)
    run.seal()
    run.freeze(of.windows)
    for i, launch in enumerate(of.launches[:4]):
        run.enter([launch])
        tell(i + 1)
        run.keep()
    run.save(complete=False)
    run.save(complete=True)


def killed(at: int, torn: bool, results: Path, of: RunRecord) -> tuple[int, bool]:
    """Simulate a run in a process that is killed before its change number ``at``, or in the middle
    of a write. Return how many launches it had entered, and whether it completed.
    """
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        count = 0

        def change(event: str, given: tuple[Any, ...]) -> None:
            nonlocal count
            writes = event == "open" and len(given) > 2 and given[2] & (os.O_WRONLY | os.O_RDWR)
            if event in CHANGES or writes:
                count += 1
                if count == at and not torn:
                    os.kill(os.getpid(), signal.SIGKILL)

        sync = os.fsync

        def synced(descriptor: int) -> None:
            nonlocal count
            count += 1
            now = count == at
            if now and torn:  # half of it is on the disk
                size = os.fstat(descriptor).st_size
                os.ftruncate(descriptor, size - min(size, 40))
            if now:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(descriptor)

        os.fsync = synced
        sys.addaudithook(change)
        try:
            story(begun(results), of, lambda n: os.write(writer, bytes([n])) and None)
        except BaseException as error:  # the child must not continue pytest
            os.write(2, repr(error).encode())
            os._exit(3)
        os._exit(0)
    os.close(writer)
    seen = b""
    while part := os.read(reader, 64):
        seen += part
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return (seen[-1] if seen else 0), status == 0


@pytest.mark.parametrize("torn", [pytest.param(False, marks=pytest.mark.full), True])
def test_killed_before_any_change_to_the_disk_nothing_is_lost(
    sample_run: RunRecord, tmp_path: Path, torn: bool
) -> None:
    """At every point, the run is readable after its first launch, and resumes to the same end."""
    whole = 0
    for at in range(1, MANY):
        results = tmp_path / str(at)
        entered, ended = killed(at, torn, results, sample_run)
        folders = list(results.glob("runs/*/*"))
        if not folders or not (folders[0] / chain.FILE).is_file():
            assert not entered, f"change {at}"
            continue
        folder = folders[0]
        if not chain.read(folder):  # the chain has no complete line yet
            assert not entered, f"change {at}"
            continue
        run = load(folder)
        assert entered <= len(run.launches) <= entered + 1, f"change {at}"
        assert [x.launch for x in run.launches] == [
            x.launch for x in sample_run.launches[: len(run.launches)]
        ]
        assert len(run.verdicts) == len(verdicts(run)), f"change {at}: as verify judges it"
        whole += 1
        if ended and not torn:
            break
        if ended or run.complete:
            continue
        again = begun(results)
        again.machine = run.machine
        again.resume(folder)
        assert [x.launch for x in again.launches] == [x.launch for x in run.launches]
        story_rest(again, sample_run)
        done = load(folder)
        assert done.complete and done.head == chain.read(folder)[-1].hash
        assert len(done.launches) == 4 and not list(folder.glob(".record.json.*"))
    assert whole > 12, "the story changes the disk more often than that"


def story_rest(run: Run, of: RunRecord) -> None:
    run.announce(of.plans)
    run.described.update(of.described)
    for launch in of.launches[len(run.launches) : 4]:
        run.enter([launch])
    run.save(complete=True)
    run.release()


def test_one_program_at_a_time(sample_run: RunRecord, tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.machine = sample_run.machine
    run.announce(sample_run.plans)
    run.seal()
    with pytest.raises(RecordError, match=f"being measured by process {os.getpid()}"):
        begun(tmp_path).resume(run.folder)
    assert load(run.folder).plans == sample_run.plans, "whoever only reads may do so"
    run.release()
    other = begun(tmp_path)
    other.machine = sample_run.machine
    other.resume(run.folder)


def test_a_dead_program_holds_no_lock(tmp_path: Path) -> None:
    if (pid := os.fork()) == 0:
        held = Lock(tmp_path)
        os.kill(os.getpid(), signal.SIGKILL)
        held.release()
    os.waitpid(pid, 0)
    Lock(tmp_path).release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS])
def test_a_file_system_without_locks_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    Lock(tmp_path).release()


def test_a_renamed_copy_goes_on_where_it_is(sample_run: RunRecord, tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.machine = sample_run.machine
    run.announce(sample_run.plans)
    run.described.update(sample_run.described)
    run.enter(sample_run.launches[:1])
    run.release()
    copied = tmp_path / "elsewhere" / "mine"
    shutil.copytree(run.folder, copied)
    before = (run.folder / chain.FILE).read_bytes()
    again = begun(tmp_path / "third")
    again.machine = sample_run.machine
    again.resume(copied)
    again.enter(sample_run.launches[1:2])
    again.save(complete=True)
    assert again.folder == copied and len(load(copied).launches) == 2
    assert (run.folder / chain.FILE).read_bytes() == before, "the original is as it was"
    assert not (tmp_path / "third").exists()


def test_results_are_readable_by_their_owner_only(sample_run: RunRecord, tmp_path: Path) -> None:
    run = begun(tmp_path)
    run.announce(sample_run.plans)
    run.seal()
    assert run.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda doc: doc.update(run="../../../../escaped"), "is not the name of a run or launch"),
        (
            lambda doc: doc["launches"][0].update(launch="../x-1"),
            "is not the name of a run or launch",
        ),
        (lambda doc: doc["launches"][0].update(launch="mine"), "has no number at its end"),
        (lambda doc: doc["launches"][0].update(wall_s=float("nan")), "a time is nan s"),
        (lambda doc: doc.update(elapsed_s=float("inf")), "a time is inf s"),
    ],
)
def test_names_and_times_of_a_hostile_record_are_refused(
    sample: Path, tmp_path: Path, change: Callable[[Any], None], message: str
) -> None:
    doc = json.loads((sample / "record.json").read_text())
    change(doc)
    (tmp_path / "record.json").write_text(json.dumps(doc))
    with pytest.raises(RecordError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("kind", ["sealed", "plan", "sweep", "state"])
def test_a_chain_line_without_required_fields_is_refused(tmp_path: Path, kind: str) -> None:
    chain.Chain(tmp_path).add(chain.Kind(kind), 7)
    with pytest.raises(RecordError, match=f"a link {kind} without"):
        chain.read(tmp_path)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_deferred_until_a_launch_is_entered(
    sample_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Otherwise the chain would have a line unknown to the program, and the next would break it."""
    usual = {n: signal.signal(n, signal.default_int_handler) for n in (number, signal.SIGHUP)}
    progress.end_on_signals()
    run = begun(tmp_path)
    run.announce(sample_run.plans)
    run.described.update(sample_run.described)
    run.seal()
    sync = os.fsync

    def struck(descriptor: int) -> None:
        os.kill(os.getpid(), number)
        sync(descriptor)

    try:
        with monkeypatch.context() as planted, pytest.raises(KeyboardInterrupt):
            planted.setattr(os, "fsync", struck)
            run.enter(sample_run.launches[:1])
        run.enter(sample_run.launches[1:2])
        run.save(complete=False)
    finally:
        for signal_number, handler in usual.items():
            signal.signal(signal_number, handler)
    run.release()
    assert [x.launch for x in load(run.folder).launches] == [
        x.launch for x in sample_run.launches[:2]
    ]
