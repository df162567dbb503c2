"""Placeholders in files that describe a world are filled in, only in a launch's copy."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.base import programs
from harness.base.errors import LaunchError
from harness.cases import CaseSpec, Device, Mode
from harness.launch.wire.messages import LaunchSpec, Script
from harness.training.rank.setup import RankPlace
from harness.training.script import process, workplace

CASE = CaseSpec(
    strategy="script", model="train", size="own", mode=Mode.WEAK, world_size=3, nodes=(2, 1),
    device=Device.CPU, backend="gloo", script="train.py --config=world.yaml other.json",
)  # fmt: skip


def filled(folder: Path, clean: tuple[str, ...] = (), words: str = CASE.script) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True)
    place = RankPlace(
        rank=0, world_size=3, local_rank=0, node=0, device=0, cpus=(0,), parent=0,
        store=lambda: store,
    )  # fmt: skip
    task = Script(folder=str(folder), steps=4, cut=1, clean=clean)
    case = replace(CASE, script=words)
    spec = LaunchSpec(launch="x", case=case, out=str(folder), task=task, files={})
    process.fill_files(spec, place, store, folder)


def test_a_file_with_a_placeholder_for_ranks_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "world.yaml").write_text("dp: {ranks}\nall: {world}\nkept: {name}\n")
    (tmp_path / "other.json").write_text('{"node": "{node}"}')
    filled(tmp_path)
    assert (tmp_path / "world.yaml").read_text() == "dp: 2\nall: 3\nkept: {name}\n"
    assert (tmp_path / "other.json").read_text() == '{"node": "{node}"}', "it asks for no ranks"


def test_the_users_file_is_never_written(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"world": {world}}')
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "link.json").symlink_to(mine)
    os.link(mine, folder / "hard.json")
    for word in (str(mine), "../mine.json", "link.json", "hard.json"):
        filled(folder, words=f"train.py {word}")
    assert mine.read_text() == '{"world": {world}}'
    assert (folder / "hard.json").read_text() == '{"world": 3}', "a file of its own now"
    with pytest.raises(LaunchError, match="leave --clean out"):
        filled(tmp_path, clean=("out",), words="train.py mine.json")


def test_ranks_under_slurm_get_their_own_rank_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that srun started has the node's variables, which ranks must not inherit."""
    for name in ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"):
        monkeypatch.setenv(name, "1")
    monkeypatch.delenv("SLURM_NODEID", raising=False)
    place = RankPlace(
        rank=1, world_size=3, local_rank=1, node=0, device=0, cpus=(0,), parent=0,
        store=dist.HashStore,
    )  # fmt: skip
    task = Script(folder=str(tmp_path), steps=4, cut=1)
    spec = LaunchSpec(launch="x", case=CASE, out=str(tmp_path), task=task, files={})
    variables = process.variables(spec, place, "localhost", 1)
    slurm = {name: value for name, value in variables.items() if name.startswith("SLURM")}
    assert slurm == {"SLURM_PROCID": "1", "SLURM_NTASKS": "3", "SLURM_LOCALID": "1"}
    assert variables["RANK"] == "1" and not any("OMPI" in name for name in variables)


HYDRA = "\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            "ProcessExitedException: process 1 terminated with signal SIGABRT\n"
            "resource_tracker.py:254: UserWarning: There appear to be 1 leaked semaphore objects\n"
            "  warnings.warn('resource_tracker: There appear to be %d '\n",
            "ProcessExitedException: process 1 terminated with signal SIGABRT",
        ),
        ("train.py:71: UserWarning: Implicit dimension\n  loss = f(x)\n", ""),
        (
            "harness.base.errors.LaunchError: each rank starts ranks of its own\n",
            "each rank starts ranks of its own",
        ),
        (
            "Error executing job with overrides: []\nTraceback (most recent call last):\n"
            '  File "main.py", line 5, in main\n    ddp_setup()\nRuntimeError: no GPU' + HYDRA,
            "RuntimeError: no GPU",
        ),
        (
            "Could not override 'lr'.\nKey 'lr' is not in struct\n    full_key: lr\n"
            "    object_type=dict" + HYDRA,
            "Key 'lr' is not in struct",
        ),
        (
            "Usage: train [OPTIONS]\nTry 'train --help' for help.\n\nError: No such option: --lrr\n",
            "Error: No such option: --lrr",
        ),
        (
            "epoch 1\n 50%|#####     |\r100%|##########|\nno such file: data.bin\n\n",
            "no such file: data.bin",
        ),
        ("    only this\n", "only this"),
        (
            "ValueError: no such table\n\n\nAt:\n  rpc.py(236): handle\n",
            "ValueError: no such table",
        ),
        (
            "RuntimeError: no such file: data.bin\n"
            "E1127 18:44:11.000000 907 torch/distributed/elastic/multiprocessing/api.py:986] failed"
            " (exitcode: 1) local_rank: 0 (pid: 911) of binary: /usr/bin/python3\n"
            'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\n"
            "train.py FAILED\n----\nFailures:\n  <NO_OTHER_FAILURES>\n----\n"
            "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_18:44:11\n====\n",
            "RuntimeError: no such file: data.bin",
        ),
        ("", ""),
    ],
)
def test_the_last_words_of_a_script_are_its_reason(log: str, reason: str) -> None:
    assert process.last_words(log) == reason


def test_the_users_modules_are_found_in_the_copy(tmp_path: Path) -> None:
    """``PYTHONPATH=.`` must refer to the copy, but installed packages keep their paths."""
    home, copy = tmp_path / "home", tmp_path / "copy"
    (copy / "src").mkdir(parents=True)
    installed = str(home / ".venv/lib/python3.11/site-packages")
    paths = ["", str(home), str(home / "src"), str(home / "left out"), installed, "/usr/lib"]
    assert workplace.on_path(paths, home, copy) == [
        "", str(copy), str(copy / "src"), str(home / "left out"), installed, "/usr/lib",
    ]  # fmt: skip
    assert workplace.on_path(paths, home, home) == paths


def test_a_script_finds_no_more_in_the_users_folder_than_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``python tools/train.py`` cannot import packages next to ``tools``, and nor can a rank."""
    monkeypatch.chdir(tmp_path)
    before = [*sys.path]
    programs.own_folder()
    assert sys.path == [*before, str(tmp_path)]
    programs.without_own_folder()
    assert sys.path == before
    programs.without_own_folder()
    assert sys.path == before
