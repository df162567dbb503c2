"""Files for brokers parse, and their script for a node is run here on two nodes."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

BROKERS = Path(__file__).parents[2] / "examples/cluster/brokers"
NODE = BROKERS / "node.sh"
#: The used fields of each broker's file, according to its reference.
FIELDS = {
    "skypilot.yaml": {"name", "num_nodes", "resources", "secrets", "run"},
    "dstack.yml": {"type", "name", "nodes", "image", "env", "commands", "resources"},
}
VARIABLES = {
    "skypilot.yaml": r"SKYPILOT_(NODE_IPS|NODE_RANK|NUM_NODES|NUM_GPUS_PER_NODE)",
    "dstack.yml": r"DSTACK_(MASTER_NODE_IP|NODE_RANK|NODES_NUM|GPUS_PER_NODE)",
}


def run_of(name: str) -> str:
    """Return the shell commands that a broker runs on each node."""
    document: dict[str, Any] = yaml.safe_load((BROKERS / name).read_text())
    assert document.keys() == FIELDS[name]
    run = document.get("run") or "\n".join(document["commands"])
    return str(run)


@pytest.mark.parametrize("name", FIELDS)
def test_a_broker_starts_the_same_script_on_every_node(name: str, tmp_path: Path) -> None:
    run = run_of(name)
    assert all(re.fullmatch(VARIABLES[name], word) for word in re.findall(r"\$(\w+)", run))
    script = tmp_path / "node.sh"
    script.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    text = run.replace("/opt/scaleproof/examples/cluster/brokers/node.sh", str(script))
    given = {
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "1",
        "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1", "DSTACK_NODE_RANK": "1", "DSTACK_NODES_NUM": "2",
        "DSTACK_GPUS_PER_NODE": "8", "PATH": os.environ["PATH"],
    }  # fmt: skip
    done = subprocess.run(
        ["sh", "-euc", text], env=given, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["10.0.0.1", "1", "2", "8", "run", "ddp/decoder-350m/weak"]


def test_slurm_on_kubernetes_submits_a_slurm_job() -> None:
    text = (BROKERS / "slinky.sh").read_text()
    subprocess.run(["sh", "-n", BROKERS / "slinky.sh"], check=True)
    words = shlex.split(text[text.index("scaleproof run") :])
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words[1:], "--dry-run"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "#SBATCH --nodes=2" in done.stdout, done.stdout + done.stderr


def test_workers_of_a_jobqueue_join_as_nodes() -> None:
    tree = ast.parse((BROKERS / "jobqueue.py").read_text())
    (join,) = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    words = [
        n.value for n in ast.walk(join) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    ]
    done = subprocess.run(
        [sys.executable, "-m", "harness", "jobs", "join", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"--token-file", "--order"} <= set(words)
    assert all(word in done.stdout for word in words if word.startswith("--"))


@pytest.mark.full
def test_the_node_script_runs_a_scaling_sweep_on_two_nodes(tmp_path: Path) -> None:
    """It starts as under a broker: on both nodes at once, configured only by variables."""
    command = tmp_path / "bin" / "scaleproof"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m harness "$@"\n')
    command.chmod(0o755)
    env = {
        **os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "DEVICES": "cpus",
        "ONE_MACHINE": "true", "PORT": "14017", "SCALEPROOF_TOKEN": "ab" * 32,
    }  # fmt: skip
    words = ["run", "ddp/mlp-nano/weak", "--no-timeline", "--no-fabric", f"--results={tmp_path}"]
    nodes = [
        subprocess.Popen(["sh", str(NODE), "127.0.0.1", str(rank), "2", "1", *words], env=env)
        for rank in range(2)
    ]
    assert nodes[0].wait(timeout=600) in (0, 5)
    nodes[1].wait(timeout=60)
    (path,) = tmp_path.glob("runs/*/*/record.json")
    record = json.loads(path.read_text())
    assert record["complete"] and len(record["nodes"]) == 2
