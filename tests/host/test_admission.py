"""Admission: conditions that make a host unfit for measurements."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.host import admission, machine, vendor
from harness.host.admission import Level
from tests.waiting import until

GPU = vendor.Gpu(
    index=0, name="NVIDIA H200", uuid="GPU-0", memory_bytes=150 << 30, mig=False, used_bytes=1 << 20,
    power_limit_w=700, default_limit_w=700, max_clock_mhz=1980,
)  # fmt: skip


def test_a_process_that_keeps_the_cpu_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The load is one busy process for every available CPU."""
    monkeypatch.setattr(admission, "LOOKS", 2)
    monkeypatch.setattr(admission.Workers, "computing", lambda self: [])  # ignore other runs
    burn = "import os\nprint(flush=True)\nwhile True: pass"
    busy = [
        subprocess.Popen([sys.executable, "-c", burn], stdout=subprocess.PIPE)
        for _ in range(len(machine.os.sched_getaffinity(0)))
    ]
    try:
        for process in busy:
            assert process.stdout is not None
            process.stdout.readline()
        findings = admission.load()
    finally:
        for process in busy:
            process.kill()
            process.communicate()
    assert findings.level is Level.BAD and "top -d 1" in findings.advice


def test_a_busy_host_gets_time_to_become_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = len(machine.os.sched_getaffinity(0))
    readings = iter([0.0, 0.9 * admission.LOOK_S * cpus, 5.0, 5.0])
    monkeypatch.setattr(machine, "busy_s", lambda cpus: next(readings))
    monkeypatch.setattr(admission.Workers, "computing", lambda self: [])
    assert admission.load().level is Level.OK


def test_computing_ranks_of_another_run_make_a_host_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "busy_s", lambda cpus: 0.0)
    monkeypatch.setattr(admission.Workers, "computing", lambda self: [4711])
    monkeypatch.setattr(admission.Workers, "runs", lambda self: [4700])
    findings = admission.load()
    assert (
        findings.level is Level.BAD
        and "pid 4700" in findings.text
        and "kill" not in findings.advice
    )


def test_only_ranks_without_a_run_are_leftovers() -> None:
    """The advice must never be to kill the ranks of another active run."""
    script = "import time; print(flush=True); time.sleep(60)"

    def agent(owner: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-c", script, "harness.training.agent.agent", f"--parent={owner}"]
        process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    with agent(1 << 22) as orphan, agent(1) as living, agent(os.getpid()) as ours:
        workers = admission.Workers()
        for process in (orphan, living, ours):
            process.kill()
    assert orphan.pid in workers.left() and living.pid not in workers.left()
    assert 1 in workers.runs() and os.getpid() not in workers.runs()
    assert ours.pid not in workers.left()


@pytest.fixture
def many_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate enough CPUs for the GPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))


@pytest.mark.usefixtures("many_cpus")
@pytest.mark.parametrize(
    ("changes", "level", "says"),
    [
        ({}, Level.OK, "1x NVIDIA H200"),
        ({"pids": (1 << 22, 1 << 23)}, Level.BAD, "used by pids 4194304, 8388608"),
        ({"used_bytes": 30 << 30}, Level.BAD, "has 30.0 GiB"),
        ({"power_limit_w": 500}, Level.WARN, "capped at 500 of 700 W"),
    ],
)
def test_devices(changes: dict[str, object], level: Level, says: str) -> None:
    findings = admission.gpus([dataclasses.replace(GPU, **changes)])  # type: ignore[arg-type]
    assert findings[0].level is level and says in findings[0].text


@pytest.mark.usefixtures("many_cpus")
def test_services_that_use_a_device_are_named() -> None:
    """The advice for an MPS server is its quit command instead of a kill."""
    with subprocess.Popen(["nvidia-cuda-mps-server", "60"], executable="/bin/sleep") as server:
        until(lambda: Path(f"/proc/{server.pid}/cmdline").read_bytes())  # it has executed sleep
        (findings,) = admission.gpus([dataclasses.replace(GPU, pids=(server.pid,))])
        server.kill()
    assert f"used by pid {server.pid} (nvidia-cuda-mps-server)" in findings.text
    assert "quit | nvidia-cuda-mps-control" in findings.advice


def test_too_few_cpus_for_the_gpus_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm task may get one CPU for eight GPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    findings = admission.gpus([GPU] * 8)
    assert any("1 CPUs for 8 GPUs" in f.text and f.level is Level.WARN for f in findings)


@pytest.mark.usefixtures("many_cpus")
def test_equal_devices_have_equal_clocks() -> None:
    slow = dataclasses.replace(GPU, index=1, max_clock_mhz=1500)
    (findings,) = admission.gpus([GPU, slow])
    assert findings.level is Level.BAD and "1500 to 1980" in findings.text


def test_too_little_memory_makes_a_host_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "MemTotal: 1000000 kB\nMemAvailable: {} kB\n"
    for free, level in ((900_000, Level.OK), (20_000, Level.BAD)):
        monkeypatch.setattr(admission.Path, "read_text", lambda self, f=free, **_: text.format(f))
        assert admission.memory().level is level


#: A process that looks like an agent, records who computes, and then computes itself.
AGENT = """
import sys, time
from harness.host.admission import Workers
workers = Workers()
print("there", flush=True)
sys.stdin.readline()
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("done", flush=True)
sys.stdin.readline()
print(workers.computing(), flush=True)
"""


def test_agents_of_one_run_are_not_mistaken_for_another_run() -> None:
    """An agent ignores itself and agents of its run, although they use CPU time."""
    command = [sys.executable, "-c", AGENT, "harness.training.agent.agent", "--join"]
    agents: list[subprocess.Popen[str]] = []

    def says(agent: subprocess.Popen[str]) -> str:
        assert agent.stdout is not None
        return agent.stdout.readline()

    def goes_on(agent: subprocess.Popen[str]) -> None:
        assert agent.stdin is not None
        agent.stdin.write("\n")
        agent.stdin.flush()

    try:
        for where in ("10.0.0.2:7", "10.0.0.1:1", "10.0.0.1:1"):  # the last one checks the others
            agents.append(
                subprocess.Popen(
                    [*command, where], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            assert says(agents[-1]) == "there\n"
        for agent in agents:
            goes_on(agent)
        for agent in agents:
            assert says(agent) == "done\n"
        goes_on(agents[-1])
        computing = json.loads(says(agents[-1]))  # may include agents of other tests
        assert [agent.pid in computing for agent in agents] == [True, False, False]
    finally:
        for agent in agents:
            agent.kill()
            agent.communicate()  # closes its pipes
