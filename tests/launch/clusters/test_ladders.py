"""A scaling sweep on each engine, started as by a user, survives a killed agent or torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.cases import Catalogue

from .test_conformance import OURS, component

AGENT = b"harness.training.agent.agent"
TORCHRUN = b"torch.distributed.run"


@pytest.mark.full
@pytest.mark.parametrize(
    "engine",
    ["torchrun", "hosts", "slurm", "slurm-rank", "ray", "hyperqueue", "monarch", "kubernetes-job"],
)
def test_a_sweep_is_measured_although_an_agent_is_killed(engine: str, tmp_path: Path) -> None:
    with component(engine, tmp_path) as about:
        name = engine.partition("-")[0]
        known = Catalogue().get("engines", name).head.get("SETTINGS", {})
        here_alone = {"one_machine": True, "listen": "127.0.0.1"}
        settings = {k: v for k, v in here_alone.items() if k in known} | about
        lines = [f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]
        (tmp_path / "c.toml").write_text("\n".join(lines))
        words = ["run", "ddp/mlp-nano/weak", "--engine", name, "--nodes", "2", "--cpus", "2"]
        more = [
            "--no-timeline",
            "--no-fabric",
            f"--cluster={tmp_path / 'c.toml'}",
            f"--results={tmp_path}",
        ]
        with (tmp_path / "out").open("w") as out:
            run = subprocess.Popen(
                [sys.executable, "-m", "harness", *words, *more], stdout=out, stderr=out,
            )  # fmt: skip
        try:
            while run.poll() is None and len([*tmp_path.glob("runs/*/*/launches/*")]) < 4:
                time.sleep(0.1)
            program = TORCHRUN if name == "torchrun" else AGENT
            while run.poll() is None and not (agents := ours(program)):
                time.sleep(0.1)
            os.kill(max(agents), signal.SIGKILL)
            assert run.wait(timeout=900) in (0, 5), (tmp_path / "out").read_text()
        finally:
            run.kill()
            run.wait()
    (path,) = tmp_path.glob("runs/*/*/record.json")
    record = json.loads(path.read_text())
    assert record["settings"]["engine"] == name and record["complete"]
    kinds = [x["cause"]["kind"] for x in record["launches"] if x.get("cause")]
    assert set(kinds) <= {"node"} and len(kinds) <= 1, "the launch that it died in, if in any"
    agents = {x["agent"] for x in record["launches"] if len(x["ranks"]) == 2}
    assert len(agents) > 1, "there were others after it"
    if name not in ("kubernetes", "ray"):  # these start all agents anew
        note = "its torchrun was ended" if name == "torchrun" else "its agent was started again"
        assert any(note in text for text in record["notes"]), record["notes"]


def ours(program: bytes) -> list[int]:
    """Return the pids of a program that these tests started, without its forked ranks."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if OURS.encode() in (path / "environ").read_bytes().split(b"\0"):
                if program in words:
                    stat = (path / "stat").read_text().rpartition(")")[2].split()
                    parents[int(path.name)] = int(stat[1])
        except OSError:
            continue
    return [pid for pid, parent in parents.items() if parent not in parents]
