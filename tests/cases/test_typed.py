"""Commands that people type to start a training: each common form is parsed or refused."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Device, Mode, Site
from harness.cases.script import parse, script_case


@pytest.mark.parametrize(
    ("typed", "target", "module", "args"),
    [
        ("train.py --lr 1", "train.py", False, ("--lr", "1")),
        ("python -u train.py", "train.py", False, ()),
        ("python3.11 train.py", "train.py", False, ()),
        ("/usr/bin/python3 -u -B -m pkg.train x", "pkg.train", True, ("x",)),
        ("python app.pyz --lr 1", "app.pyz", False, ("--lr", "1")),
        ("python -u tool --lr 1", "tool", False, ("--lr", "1")),
        ("./tool --lr 1", "./tool", False, ("--lr", "1")),
    ],
)
def test_python_commands_are_parsed(
    typed: str, target: str, module: bool, args: tuple[str, ...], tmp_path: Path
) -> None:
    """Targets need not end in ``.py``: an archive and a program with a Python shebang work, too."""
    for name in ("app.pyz", "tool"):
        (tmp_path / name).write_text("#!/usr/bin/env python3\nprint()\n")
        (tmp_path / name).chmod(0o755)
    command = parse(shlex.split(typed), tmp_path)
    assert (command.target, command.module, command.args) == (target, module, args)
    assert command.launcher == ()


@pytest.mark.parametrize(
    ("typed", "becomes", "target", "module"),
    [
        (
            "torchrun --nproc_per_node=4 train.py --lr 1",
            "torchrun --nproc_per_node={ranks} train.py --lr 1", "train.py", False,
        ),
        (
            "torchrun --standalone --nproc-per-node 4 train.py",
            "torchrun --standalone --nproc-per-node={ranks} train.py", "train.py", False,
        ),
        (
            "torchrun --nproc-per-node gpu -m pkg.train x",
            "torchrun --nproc-per-node={ranks} -m pkg.train x", "pkg.train", True,
        ),
        (
            "torchrun --nnodes 1 --nproc_per_node 4 --rdzv-backend c10d train.py",
            "torchrun --nnodes 1 --nproc_per_node={ranks} --rdzv-backend c10d train.py",
            "train.py", False,
        ),
        (
            "torchrun --nnodes 1 train.py", "torchrun --nproc-per-node={ranks} --nnodes 1 train.py",
            "train.py", False,
        ),
        (
            "torchrun --nproc-per-node {ranks} train.py",
            "torchrun --nproc-per-node={ranks} train.py", "train.py", False,
        ),
        ("torchrun train.py", "torchrun --nproc-per-node={ranks} train.py", "train.py", False),
        (
            "accelerate launch --multi_gpu --num_processes 4 --mixed_precision bf16 train.py",
            "accelerate launch --multi_gpu --num_processes={world} --mixed_precision bf16 train.py",
            "train.py", False,
        ),
        (
            "accelerate launch train.py", "accelerate launch --num_processes={world} train.py",
            "train.py", False,
        ),
        (
            "deepspeed --num_gpus=4 --master_port 29500 train.py --deepspeed ds.json",
            "deepspeed --num_gpus={ranks} --master_port={port} train.py --deepspeed ds.json",
            "train.py", False,
        ),
        (
            "torchrun --master_port=29500 --nproc-per-node={ranks} train.py",
            "torchrun --master_port={port} --nproc-per-node={ranks} train.py", "train.py", False,
        ),
        (
            "python -m torch.distributed.run --nproc_per_node=2 train.py --nproc_per_node=7",
            "python -m torch.distributed.run --nproc_per_node={ranks} train.py --nproc_per_node=7",
            "train.py", False,
        ),
        (
            "deepspeed --num_gpus=4 train.py", "deepspeed --master_port={port} --num_gpus={ranks} train.py",
            "train.py", False,
        ),
        (
            "fabric run --accelerator cpu --devices {ranks} train.py --main-port 7",
            "fabric run --main-port={port} --accelerator cpu --devices={ranks} train.py --main-port 7",
            "train.py", False,
        ),
        (
            "fabric run --main_port 29400 train.py",
            "fabric run --devices={ranks} --main_port={port} train.py", "train.py", False,
        ),
        ("bash launch.sh {ranks}", "bash launch.sh {ranks}", "launch.sh", False),
        (
            "mpirun --oversubscribe -np 4 python train.py -np 7",
            "mpirun --oversubscribe -np {ranks} python train.py -np 7", "train.py", False,
        ),
        ("mpiexec python -m pkg.train", "mpiexec -n {ranks} python -m pkg.train", "pkg.train", True),
        ("mpirun -np 4 train.sh -n 7", "mpirun -np {ranks} train.sh -n 7", "train.sh", False),
        ("nice -n 5 torchrun --nproc-per-node {ranks} train.py",
         "nice -n 5 torchrun --nproc-per-node {ranks} train.py", "train.py", False),
    ],
)  # fmt: skip
def test_launchers_get_the_number_of_ranks_of_each_world_size(
    typed: str, becomes: str, target: str, module: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name in (
        "accelerate",
        "deepspeed",
        "fabric",
        "mpirun",
        "mpiexec",
    ):  # Dummy programs, so that the test does not depend on installed launchers.
        (tmp_path / name).write_text("#!/bin/sh")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = parse(shlex.split(typed))
    assert shlex.join(command.launcher).replace("'", "") == becomes
    assert (command.target, command.module) == (target, module)


@pytest.mark.parametrize(
    ("typed", "message", "works"),
    [
        ("env OMP_NUM_THREADS=1 python train.py", "variables", "OMP_NUM_THREADS=1 scaleproof run"),
        ("LR=1 train.py", "variables", "LR=1 scaleproof run --script --cpus 2 -- train.py"),
        ("srun -n 4 python fit.py --lr 1", "--engine slurm", "--cpus 4 -- fit.py --lr 1"),
        ("python -W ignore fit.py --lr 1", "option -W", "-- fit.py --lr 1"),
        ("python -c 'import train'", "option -c", "-- train.py"),
        ("nohup python fit.py --lr 1", "one process", "nohup scaleproof run --script --cpus 2 -- python fit.py --lr 1"),
        ("nice -n 5 torchrun fit.py", "one process", "nice -n 5 scaleproof run --script --cpus 2 -- torchrun fit.py"),
        ("timeout 600 python -m fit", "one process", "timeout 600 scaleproof run --script --cpus 2 -- python -m fit"),
        ("uv run --with x -m fit", "one process", "uv run --with x scaleproof run --script --cpus 2 -- -m fit"),
        ("poetry run train --lr 1", "one process", "poetry run scaleproof run --script --cpus 2 -- train --lr 1"),
        ("sh -c 'torchrun fit.py --lr 1'", "line of a shell", "-- torchrun fit.py --lr 1"),
        ("bash -lc 'cd x; torchrun fit.py'", "line of a shell", "-- bash launch.sh '{ranks}'"),
        ("sh -c \"torchrun 'fit.py\"", "line of a shell", "-- bash launch.sh '{ranks}'"),
        ("sh -c ''", "line of a shell", "-- bash launch.sh '{ranks}'"),
        ("bash launch.sh -c conf.yaml", "how many ranks", "-- bash launch.sh -c conf.yaml '{ranks}'"),
        ("train.ipynb", "is a notebook", "jupyter nbconvert --to script train.ipynb"),
        ("ls fit.py --lr 1", "how many ranks", "torchrun --nproc-per-node {ranks} fit.py --lr 1"),
        ("ls train", "the words do not show what ls starts", "-- ls train '{ranks}'"),
        ("nothing-here fit.py --lr 1", "neither a Python file", "-- fit.py --lr 1"),
        ("python -O train.py", "option -O", "-- train.py"),
        ("deepspeed train.py", "deepspeed is not installed here", "pip install deepspeed"),
        ("python -I train.py", "option -I", "-- train.py"),
        ("uv run train.py", "one process", "uv run scaleproof run --script --cpus 2 -- train.py"),
        ("bash launch.sh", "how many ranks", "{ranks}"),
    ],
)  # fmt: skip
def test_a_refused_command_is_reported_with_a_form_that_works(
    typed: str, message: str, works: str
) -> None:
    with pytest.raises(SpecError) as refused:
        parse(shlex.split(typed))
    assert message in refused.value.what and works in refused.value.fix


def test_a_program_that_takes_the_number_of_ranks_needs_no_script(tmp_path: Path) -> None:
    """``make train N={ranks}`` may start any program, so the case is named after ``make``."""
    command = parse(["make", "train", "N={ranks}"])
    assert command.launcher == ("make", "train", "N={ranks}")
    assert command.name == "make"


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("tool", "/elsewhere/bin/python3.11 -m pip install scaleproof"),
        ("./tool", "scaleproof run --script --cpus 2 -- python ./tool"),
    ],
)
def test_a_program_of_another_environment_is_refused(
    typed: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other environment lacks scaleproof: the fix installs it there or uses this Python."""
    (tmp_path / "tool").write_text("#!/elsewhere/bin/python3.11\nprint()\n")
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SpecError, match="another Python, /elsewhere/bin/python3.11") as refused:
        parse([typed], tmp_path)
    assert refused.value.fix == fix


def test_a_python_program_with_a_shell_trampoline_is_recognized(tmp_path: Path) -> None:
    """Pip writes such a script if the interpreter's path exceeds the kernel's limit for a shebang."""
    (tmp_path / "tool").write_text(
        f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    )
    (tmp_path / "tool").chmod(0o755)
    assert parse(["./tool", "x"], tmp_path).args == ("x",)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("for s in 1 2; do torchrun --nproc_per_node=4 t.py $s; done", "--nproc_per_node=$1"),
        ("accelerate launch --num_processes 8 $SCRIPT", "--num_processes $1"),
        ("mpirun -np 16 python $SCRIPT", "mpirun -np $1"),
    ],
)
def test_the_fix_for_a_shell_script_copies_it_with_an_argument(
    text: str, number: str, tmp_path: Path
) -> None:
    """The fix works as printed: the copy takes the number of ranks, and the user's file is
    unchanged.
    """
    (tmp_path / "launch.sh").write_text(f"SCRIPT=train.py\n{text}\n")
    (tmp_path / "ranks.sh").write_text("mine\n")
    with pytest.raises(SpecError, match="does not state how many ranks") as refused:
        parse(["bash", "launch.sh"], tmp_path)
    copy, _, run = refused.value.fix.partition(" && ")
    subprocess.run(copy, shell=True, check=True, cwd=tmp_path)
    assert number in (tmp_path / "ranks_2.sh").read_text()
    assert (tmp_path / "ranks.sh").read_text() == "mine\n", "the fix must not overwrite a file"
    assert number not in (tmp_path / "launch.sh").read_text()
    assert parse(shlex.split(run.partition(" -- ")[2]), tmp_path).launcher


SPAWNS = "import torch.multiprocessing as mp\nmp.spawn(train, nprocs=int(sys.argv[1]))\n"


@pytest.mark.parametrize(
    "text",
    [
        SPAWNS,
        "from torch.multiprocessing import spawn\n",
        "torch.multiprocessing.spawn(f)\n",
        "Trainer(devices=n, strategy='ddp_spawn')\n",
        "accelerate.notebook_launcher(train, num_processes=n)\n",
        "with idist.Parallel('gloo', nproc_per_node=n) as parallel: ...\n",
        "def meet():\n    dist.init_process_group('gloo')\nmp.Process(target=meet).start()\n",
    ],
)
def test_a_script_that_spawns_its_ranks_is_the_launcher(text: str, tmp_path: Path) -> None:
    """This needs ``{ranks}`` among its arguments. Otherwise the script runs in each rank, because
    many scripts can spawn ranks but need not.
    """
    (tmp_path / "train.py").write_text(text)
    parsed = parse(["python", "train.py", "{ranks}"], tmp_path)
    assert parsed.launcher == ("python", "train.py", "{ranks}")
    assert parse(["train.py", "4"], tmp_path).launcher == ()


def test_a_module_that_spawns_its_ranks_is_the_launcher(tmp_path: Path) -> None:
    """The parser inspects the package's ``__main__.py`` and the modules that it imports."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").write_text("from pkg.learn import main\n")
    (tmp_path / "pkg" / "learn.py").write_text(SPAWNS)
    parsed = parse(["python", "-m", "pkg", "--replicas", "{ranks}"], tmp_path)
    assert parsed.launcher == ("python", "-m", "pkg", "--replicas", "{ranks}")
    assert (parsed.target, parsed.module, parsed.args) == ("pkg", True, ())
    assert parse(["-m", "pkg", "4"], tmp_path).launcher == ()


def test_a_script_outside_of_the_folder_gets_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each launch runs in a copy of this folder, where ``torchrun ../../tools/train.py`` would
    fail.
    """
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "train.py").write_text("")
    (tmp_path / "experiment").mkdir()
    monkeypatch.chdir(tmp_path / "experiment")
    there = str(tmp_path / "tools" / "train.py")
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    for words in (["../tools/train.py"], ["torchrun", "--nproc-per-node=2", "../tools/train.py"]):
        case = script_case([*words, "--data", "../data"], site, Mode.WEAK)
        assert shlex.split(case.script) == [*words[:-1], there, "--data", "../data"]


def test_a_script_that_spawns_no_ranks_may_take_their_number(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('spawn')\nmp.Process(target=fetch).start()\n")
    assert parse(["train.py", "{ranks}"], tmp_path).launcher == ()


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (
            "#!/bin/bash\nexport OMP_NUM_THREADS=1\nNCCL_DEBUG=INFO torchrun \\\n"
            "  --nproc_per_node=4 \\\n  train.py --lr 1  # four of them\n",
            "torchrun '--nproc_per_node={ranks}' train.py --lr 1",
        ),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 train.py\n",
            "python -m torch.distributed.launch '--nproc_per_node={ranks}' train.py",
        ),
        ("accelerate launch train.py\n", "accelerate launch '--num_processes={world}' train.py"),
        ("torchrun --nproc_per_node=$1 $SCRIPT train.py\n", "bash launch.sh '{ranks}'"),
        ("echo 'two\nlines'; python train.py\n", "bash launch.sh '{ranks}'"),
    ],
)
def test_the_error_for_a_shell_script_names_the_command_that_it_starts(
    text: str, fix: str, tmp_path: Path
) -> None:
    (tmp_path / "launch.sh").write_text(text)
    with pytest.raises(SpecError, match="does not state how many ranks") as refused:
        parse(["bash", "launch.sh"], tmp_path)
    assert refused.value.fix == f"scaleproof run --script --cpus 2 -- {fix}"
    if not fix.startswith("accelerate"):  # Accelerate need not be installed where the tests run.
        parse(shlex.split(fix), tmp_path)
