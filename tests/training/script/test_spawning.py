"""A rank that starts ranks is refused with an explanation; other child processes are allowed."""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from harness.base.errors import LaunchError
from harness.training.script import spawning


def setup(rank: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=2)


def train(rank: int) -> None:
    setup(rank)


def enter(rank: int, begin: object) -> None:
    """Call a training function after setup, as a tutorial does."""


def fetch(rank: int) -> None:
    """A helper that joins no group."""


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    spawn = importlib.import_module("torch.multiprocessing.spawn")
    monkeypatch.setattr(spawn, "start_processes", spawn.start_processes)
    monkeypatch.setattr(mp, "start_processes", mp.start_processes)
    monkeypatch.setattr(BaseProcess, "start", BaseProcess.start)
    monkeypatch.setattr(subprocess.Popen, "__init__", subprocess.Popen.__init__)
    monkeypatch.setattr(dist, "is_initialized", lambda: False)  # other tests may leave a group
    spawning.refuse_spawning(request.param)
    yield


@pytest.mark.parametrize("refused", ["train.py"], indirect=True)
@pytest.mark.usefixtures("refused")
def test_ranks_started_by_a_rank_are_refused_with_a_working_command() -> None:
    with pytest.raises(LaunchError, match=r"bash launch.sh \{ranks\}"):
        mp.spawn(print, nprocs=2)
    for words in ((setup, (0,)), (train, (0,)), (enter, (0, train))):
        for method in ("fork", "spawn"):
            process = multiprocessing.get_context(method).Process(target=words[0], args=words[1])
            with pytest.raises(LaunchError, match="starts ranks of its own"):
                process.start()


@pytest.mark.parametrize("refused", ["train.py --n {ranks}"], indirect=True)
@pytest.mark.usefixtures("refused")
def test_the_fix_for_a_script_with_a_ranks_argument_names_the_interpreter() -> None:
    with pytest.raises(LaunchError, match=r"-- env python train.py --n \{ranks\}"):
        mp.spawn(print, nprocs=2)


@pytest.mark.parametrize("refused", ["train.py 2"], indirect=True)
@pytest.mark.usefixtures("refused")
def test_interpreters_that_join_a_group_are_ranks(tmp_path: Path) -> None:
    """Tacotron's multiproc.py starts ranks like this; a script that joins no group is allowed."""
    for name, text in (("helper.py", ""), ("setup.py", "dist.init_process_group('gloo')")):
        (tmp_path / name).write_text(text)
    (tmp_path / "train.py").write_text("import setup")
    subprocess.run([sys.executable, "helper.py"], cwd=tmp_path, check=True)
    with pytest.raises(LaunchError, match="starts ranks of its own"):
        subprocess.Popen([sys.executable, "train.py", "--rank=0"], cwd=tmp_path)


@pytest.mark.parametrize("refused", ["train.py"], indirect=True)
@pytest.mark.usefixtures("refused")
def test_helpers_of_a_rank_are_started() -> None:
    helper = mp.Process(target=fetch, args=(0,))
    helper.start()
    helper.join()
    assert helper.exitcode == 0
