"""Cluster files, numbers of ranks per node, and the commands that engines plan."""

from __future__ import annotations

import importlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.base.errors import ConfigError, LaunchError, SpecError
from harness.cases import Catalogue, Device
from harness.cases.site import parse_nodes, resolve
from harness.launch import cluster
from harness.launch.emulation import shaping
from harness.launch.engine import Deployment, State
from harness.launch.engines import emulated, hosts, monarch, slurm
from harness.launch.wire.messages import Share

ENGINES = Catalogue().entries["engines"]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [("4", (4, ())), ("2x8", (2, (8, 8))), ("4+8+16", (3, (4, 8, 16))), ("2x4+8", (3, (4, 4, 8)))],
)
def test_nodes_are_a_number_or_the_ranks_on_each(text: str, nodes: tuple[int, Any]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "x", "2x", "a", "0", "4+0", "-1", "2x0", "1.5"])
def test_invalid_nodes_are_a_clear_error(text: str) -> None:
    with pytest.raises(SpecError, match="--nodes"):
        parse_nodes(text)


def test_engines_for_other_machines_need_a_number_of_devices() -> None:
    with pytest.raises(SpecError, match="--gpus N or --cpus N"):
        resolve(engine="slurm", nodes="2", known_engines=ENGINES)
    site = resolve(engine="slurm", nodes="4+8+16", gpus="28", known_engines=ENGINES)
    assert site.nodes == (4, 8, 16) and site.device is Device.CUDA
    assert site.shape(12) == (4, 8) and site.worlds == (1, 2, 4, 8, 16, 28)


def test_one_machine_in_a_cluster_file_is_labelled_as_emulated() -> None:
    site = resolve(engine="slurm", nodes="2", cpus=2, one_machine=True, known_engines=ENGINES)
    assert site.emulated
    assert resolve(engine="emulated", nodes="1", cpus=1, known_engines=ENGINES).emulated


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    return path


def test_a_cluster_file_replaces_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, "[slurm]\npartition = 'gpu'\nmodules = ['cuda']\n[ray]\naddress = 'x'\n")
    settings = cluster.cluster_settings(path, "slurm", ENGINES)
    assert (settings["partition"], settings["modules"], settings["account"]) == (
        "gpu",
        ["cuda"],
        "",
    )


def test_the_timeout_of_collectives_can_be_set_for_every_engine(tmp_path: Path) -> None:
    path = write(tmp_path, "[local]\ncollective_s = 300\n")
    assert cluster.cluster_settings(path, "local", ENGINES)["collective_s"] == 300
    with pytest.raises(ConfigError, match="seconds above 0"):
        cluster.cluster_settings(write(tmp_path, "[local]\ncollective_s = -1\n"), "local", ENGINES)


def test_all_mistakes_of_a_cluster_file_are_reported_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "[slurm]\npartitoin = 'gpu'\nmodules = 'cuda'\n[slurmm]\na = 1\n")
    with pytest.raises(ConfigError) as error:
        cluster.cluster_settings(path, "slurm", ENGINES)
    text = str(error.value)
    assert "3 problems" in text
    for words in ("line 2", "did you mean 'partition'?", "line 3", "expected a list", "'slurm'?"):
        assert words in text


@pytest.mark.parametrize("text", ["[slurm", "slurm = 3"])
def test_a_cluster_file_without_tables_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        cluster.cluster_settings(write(tmp_path, text), "slurm", ENGINES)
    with pytest.raises(ConfigError, match="cannot be read"):
        cluster.cluster_settings(tmp_path / "missing.toml", "slurm", ENGINES)


def test_a_command_as_python_is_a_list(tmp_path: Path) -> None:
    """A string with spaces would be the name of one program."""
    file = write(tmp_path, '[slurm]\npython = "apptainer exec image.sif python"')
    with pytest.raises(ConfigError, match=r'\["apptainer", "exec", "image.sif", "python"\]'):
        cluster.cluster_settings(file, "slurm", ENGINES)


def deployment(engine: str, shape: tuple[int, ...], /, **settings: Any) -> Deployment:
    return Deployment(
        nodes=shape, device=Device.CUDA, join="head:4000", token_file=Path("/run/token"),
        folder=Path("/run"), python=("python3",),
        settings={**ENGINES[engine].head["SETTINGS"], **settings},
    )  # fmt: skip


SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=scaleproof
#SBATCH --output=/run/slurm.log
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --partition=gpu
#SBATCH --constraint=h200
#SBATCH hetjob
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --partition=gpu
#SBATCH --constraint=h200
module load cuda/12.8
"""


def test_a_batch_script_has_a_component_for_each_size_of_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    asked = dict(partition="gpu", modules=["cuda/12.8"], lines=["--constraint=h200"])
    (command,) = slurm.build().plan(deployment("slurm", (4, 4, 8), **asked))
    assert command.argv == ("sbatch", "--parsable", "/run/job.sbatch")
    text = command.files["/run/job.sbatch"]
    assert text.startswith(SCRIPT)
    last = text.splitlines()[-1]
    first, second = last.split(" : ")
    assert first.startswith("exec srun --het-group=0 --nodes=2 --ntasks=2 ")
    assert second.startswith("--het-group=1 --nodes=1 --ntasks=1 ")
    assert "--token-file /run/token" in first and "--token-file /run/token" in second


def test_inside_an_allocation_srun_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (command,) = slurm.build().plan(deployment("slurm", (8, 8)))
    assert command.argv[:2] == ("srun", "--overlap")
    assert "--nodes=2" in command.argv and "--ntasks-per-node=1" in command.argv


@pytest.mark.parametrize(
    ("line", "host"),
    [("gpu01", ("gpu01", ())), (" gpu01  0,1,4-7 ", ("gpu01", (0, 1, 4, 5, 6, 7)))],
)
def test_a_host_is_an_address_and_its_devices(line: str, host: Any) -> None:
    assert hosts.parse(line) == host


def test_over_ssh_the_token_is_on_no_command_line() -> None:
    first, two = hosts.build().plan(deployment("hosts", (8, 2), nodes=["a", "b 0,1"]))
    assert first.argv[:4] == ("ssh", "-oBatchMode=yes", "--", "a")
    assert "/dev/stdin" in first.argv[4] and "/run/token" not in " ".join(first.argv)
    assert "CUDA_VISIBLE_DEVICES=0,1" in two.argv[4] and "--order=1" in two.argv[4]


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "-l root"])
def test_a_host_that_would_be_an_option_of_ssh_is_refused(host: str) -> None:
    with pytest.raises(SpecError, match="is not a host|would be an option"):
        hosts.build().plan(deployment("hosts", (1,), nodes=[host]))


@pytest.mark.parametrize(
    ("name", "more"), [("hyperqueue", {}), ("monarch", {"workers": ["tcp://a:1", "tcp://b:1"]})]
)
def test_commands_of_tasks_have_a_number_and_no_token(name: str, more: Any) -> None:
    commands = (
        importlib.import_module(f"harness.launch.engines.{name}")
        .build()
        .plan(deployment(name, (8, 8), **more))
    )
    assert [command.nodes for command in commands] == [(0,), (1,)]
    for i, command in enumerate(commands):
        words = " ".join(command.argv)
        assert f"--order={i}" in words and "/dev/stdin" in words and "/run/token" not in words


def test_a_node_without_a_worker_is_one_clear_error() -> None:
    with pytest.raises(SpecError, match="requests 2 nodes, but 1 are listed"):
        monarch.build().plan(deployment("monarch", (8, 8), workers=["tcp://a:1"]))


def test_without_ssh_there_is_one_line_for_each_node() -> None:
    (command,) = hosts.build().plan(deployment("hosts", (8,), nodes=["a"], ssh=False))
    assert command.by_hand
    assert command.argv == (
        "scaleproof",
        "jobs",
        "join",
        "head:4000",
        "--token-file",
        "/run/token",
        "--order=0",
    )


def test_too_few_hosts_are_a_clear_error() -> None:
    with pytest.raises(SpecError, match="--nodes requests 2 nodes, but 1 are listed"):
        hosts.build().plan(deployment("hosts", (8, 8), nodes=["a"]))
    for wrong in ("a b c", "a -", "a 7-4", "a 0,,1", "a 0-"):
        with pytest.raises(SpecError, match="is not a host"):
            hosts.parse(wrong)


def test_tasks_are_per_node_or_per_rank() -> None:
    with pytest.raises(SpecError, match="tasks = 'ranks'"):
        slurm.build().plan(deployment("slurm", (8,), tasks="ranks"))


@pytest.mark.parametrize(
    ("share", "visible", "device"),
    [
        (dict(first=8, count=8, node_first=8, node_count=8), 8, 3),  # one agent per node
        # one agent per rank, which sees all devices or only its own
        (dict(first=11, count=1, node_first=8, node_count=8, agents=8), 8, 3),
        (dict(first=11, count=1, node_first=8, node_count=8, agents=8), 1, 0),
    ],
)
def test_a_rank_gets_its_own_device(share: dict[str, int], visible: int, device: int) -> None:
    from harness.training.agent.world import device_of

    assert device_of(11, Share(node=1, **share), visible) == device


def test_a_job_survives_a_controller_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = tmp_path / "squeue"
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 7\n")
    (tmp_path / "sbatch").chmod(0o755)
    (command,) = slurm.build().plan(deployment("slurm", (8,)))
    command = replace(command, files={str(tmp_path / "job.sbatch"): ""})
    batch = slurm.BatchJob(command, tmp_path)
    for script, state in [
        ("echo 'RUNNING|None'", State.RUNNING),
        ("echo 'Socket timed out on send/recv operation' >&2; exit 1", State.RUNNING),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", State.ENDED),
    ]:
        says.write_text(f"#!/bin/sh\n{script}\n")
        says.chmod(0o755)
        assert batch.poll()[0] is state


def test_links_have_rates_per_node_and_per_pair() -> None:
    from harness.cases import Site

    site = Site(device=Device.CPU, backend="gloo", nodes=(1, 1, 1), emulated=True)

    def links(knobs: dict[str, object]) -> shaping.Links:
        case = site.case("ddp/mlp-nano", knobs=knobs)
        return shaping.links_of(case, "emulated", emulated.KNOBS, 3)

    knobs = {"emulated.rate_mbit": 200.0, "emulated.slow_links": "1:50,0-2:20"}
    rates = links(knobs)
    assert rates.rates == (200.0, 50.0, 200.0)
    assert rates.between == {(0, 2): 20.0, (2, 0): 20.0}
    assert not rates.delayed
    knobs = {"emulated.delay_ms": 1.0, "emulated.far_links": "2:5"}
    rates = links(knobs)
    assert rates.delay_ms == ((0, 1, 5), (1, 0, 5), (5, 5, 0))
    for wrong in (
        {"emulated.slow_links": "3:50"}, {"emulated.far_links": "0-7:5"},
        {"emulated.slow_links": "1:."}, {"emulated.slow_links": "1:0"},
    ):  # fmt: skip
        with pytest.raises(LaunchError, match="with nodes from 0 to 2"):
            links(wrong)
    assert shaping.burst(1000.0) == 1_000_000, "8 ms of the rate"
