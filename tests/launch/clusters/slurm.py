"""A real Slurm cluster of several daemons on this machine, without root and without munge."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 30.0

CONF = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={base}/state
SlurmdSpoolDir={base}/spool/%n
SlurmctldPidFile={base}/run/slurmctld.pid
SlurmdPidFile={base}/run/slurmd.%n.pid
SlurmctldLogFile={base}/log/slurmctld.log
SlurmdLogFile={base}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
SchedulerParameters=bf_interval=1
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
EioTimeout=5
{nodes}
PartitionName=debug Nodes=node[1-{count}] Default=YES MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName=node{i} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs={cpus} Boards=1"
    " SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000"
)


def missing() -> str:
    """Return why Slurm cannot run here; empty if it can."""
    for tool in ("slurmctld", "slurmd", "srun"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (bash scripts/system-packages.sh)"
    return ""


def free_ports(count: int) -> list[int]:
    """Return different unused ports."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports


@contextmanager
def cluster(cpus: tuple[int, ...] = (2, 2, 4)) -> Iterator[dict[str, str]]:
    """Run a cluster with one node for each number of CPUs; yield the environment for clients."""
    base = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    for name in ("state", "run", "log", *(f"spool/node{i + 1}" for i in range(len(cpus)))):
        (base / name).mkdir(parents=True)
    ports = free_ports(len(cpus) + 1)
    nodes = [
        NODE.format(i=i, port=port, cpus=n)
        for i, (n, port) in enumerate(zip(cpus, ports[1:], strict=True), 1)
    ]
    user = getpass.getuser()
    (base / "slurm.conf").write_text(
        CONF.format(user=user, ports=ports, base=base, nodes="\n".join(nodes), count=len(cpus))
    )
    env = {**os.environ, "SLURM_CONF": str(base / "slurm.conf")}
    daemons = [["slurmctld", "-D"]]
    daemons += [["slurmd", "-D", "-N", f"node{i + 1}"] for i in range(len(cpus))]
    processes = []
    try:
        for i, daemon in enumerate(daemons):
            with (base / "log" / f"daemon{i}.out").open("wb") as out:
                processes.append(
                    subprocess.Popen(
                        daemon, env=env, stdout=out, stderr=out, start_new_session=True
                    )
                )
        deadline = time.monotonic() + START_S
        while _idle(env) < len(cpus):
            if time.monotonic() > deadline:
                raise RuntimeError(f"Slurm did not start: see {base}/log")
            time.sleep(0.1)
        yield {"SLURM_CONF": env["SLURM_CONF"]}
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(base, ignore_errors=True)


def _idle(env: dict[str, str]) -> int:
    try:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-o", "%T"], env=env, capture_output=True, text=True, timeout=2
        ).stdout
    except subprocess.TimeoutExpired:
        return 0
    return done.split().count("idle")
