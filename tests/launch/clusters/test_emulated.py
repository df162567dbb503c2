"""Emulated networks with real network namespaces and packets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cases import Catalogue, Device, Site
from harness.launch.engine import Where
from harness.launch.engines.emulated import build
from harness.measure.bench import Bench

HERE = build().probe()
DELAY_MS = 10.0

pytestmark = pytest.mark.skipif(not HERE.available, reason=f"emulated: {HERE.reason}")


@pytest.mark.full  # agents and a few launches each
@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ("slow_links=1:40", "NODE  node 1 is"),
        ("slow_links=0-2:40", "LINK  the link node 0 - node 2 is"),
        ("delay_ms=0", "no node and no link is 10% slower"),
    ],
)
def test_a_slow_node_and_a_slow_link_are_named(tmp_path: Path, knob: str, message: str) -> None:
    """There are four nodes on two cores, and the first round tests the slow link."""
    command = [
        *(
            sys.executable,
            "-m",
            "harness",
            "network",
            "pairs",
            "--engine",
            "emulated",
            "--nodes",
            "4x1",
        ),
        *("--set", "emulated.rate_mbit=200", "--set", f"emulated.{knob}"),
        *("--results", str(tmp_path), "--exclude", str(tmp_path / "exclude")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert message in done.stdout, done.stdout + done.stderr
    assert done.returncode == (1 if "slow_links" in knob else 0)
    named = (tmp_path / "exclude").read_text().split("\n")
    assert ("node 1" in named) == ("NODE" in message)


@pytest.mark.full  # four agents import torch, as in the conformance of root's
@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user's already")
def test_an_ordinary_user_gets_the_same_network() -> None:
    """The engine creates its namespaces from an unprivileged user namespace."""
    inside = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if subprocess.run([*inside, "unshare", "--user", "--net", "true"], check=False).returncode:
        pytest.skip("no user namespaces here")
    conformance = str(Path(__file__).with_name("test_conformance.py"))
    suite = [sys.executable, "-m", "pytest", "-q", conformance, "-k", "emulated"]
    done = subprocess.run([*inside, *suite], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout and "skipped" not in done.stdout


@pytest.mark.full  # two sweeps
def test_a_round_trip_takes_twice_the_delay(tmp_path: Path) -> None:
    if not Path("/dev/net/tun").exists():
        pytest.skip("no /dev/net/tun")
    nodes = (1, 1)
    site = Site(device=Device.CPU, backend="gloo", nodes=nodes, engine="emulated", emulated=True)
    launcher = Bench(Catalogue(), Catalogue().get("engines", "emulated"), Where(nodes=nodes))
    took_s = {}
    try:
        for delay_ms in (DELAY_MS, 0.0):  # which also takes it back
            case = site.fabric(nodes, {"emulated.delay_ms": delay_ms})
            rows = launcher.sweep(case, tmp_path)
            small = [r for r in rows if r.operation == "send_recv" and r.payload_bytes < 100]
            took_s[delay_ms] = small[0].time_s
    finally:
        launcher.worlds.close()
    assert took_s[DELAY_MS] >= 2 * DELAY_MS / 1e3
    assert took_s[0.0] < 2 * DELAY_MS / 1e3
