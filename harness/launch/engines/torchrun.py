"""Engine for torchrun, with one or several nodes on this machine.

Ranks start in fresh interpreters, as torchrun starts them for users.
"""

from __future__ import annotations

import bisect
import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from harness.base import programs
from harness.base.documents import Json, to_doc
from harness.cases import CaseSpec, Device, StandIn
from harness.launch.dialers import InheritingJob, agent_command, die_with_parent
from harness.launch.engine import (
    Capabilities,
    Command,
    Deployment,
    Ended,
    Job,
    Tick,
    Where,
    importable,
)
from harness.launch.fleet import Fleet
from harness.launch.wire import evidence
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.evidence import examine, lives, rank_end
from harness.launch.wire.messages import LaunchSpec, RankEnd

ENGINE = dict(multi_node=True, one_machine=True, packs=False, slows_ranks=False)
#: Settings of torchrun, in seconds. Restarts are always off, because a world that lost a rank must
#: not be measured.
SETTINGS = dict(monitor_interval=0.1, join_timeout=60)
#: Seconds between two checks of the ranks.
TICK_S = 0.2
#: Seconds between the first failure and the end of the world. In this time, ranks may write
#: evidence.
GRACE_S = 1.0
#: Pattern of an entry in torchrun's report on failures. Each line may have a prefix of the log.
_FAILED = re.compile(r"\srank +: (\d+) \(local_rank: \d+\)\n.*?exitcode +: (-?\d+)")


def commands(
    nodes: Sequence[int],
    name: str,
    port: int | str,
    spec: str,
    logs: str,
    asked: Mapping[str, Json] = SETTINGS,
) -> list[list[str]]:
    """Return one torchrun command for each node.

    Node 0 hosts the rendezvous. Nodes may have different numbers of ranks.
    """
    configuration = (
        f"is_host={{}},join_timeout={asked['join_timeout']:g},last_call_timeout=1,read_timeout=20"
    )
    return [
        [
            *(sys.executable, *programs.MODULE, "torch.distributed.run"),
            f"--nnodes={len(nodes)}",
            f"--nproc-per-node={ranks}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            f"--rdzv-id={name}",
            f"--rdzv-conf={configuration.format(int(node == 0), asked['join_timeout'])}",
            "--local-addr=127.0.0.1",
            "--max-restarts=0",
            f"--monitor-interval={asked['monitor_interval']:g}",
            f"--log-dir={logs}",
            *("-m", programs.TORCHRUN_RANK),
            spec,
        ]
        for node, ranks in enumerate(nodes)
    ]


def environment() -> dict[str, str]:
    """Return the environment of torchrun and its ranks."""
    ours = {
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONSAFEPATH": "1",  # the ranks get the same option as in programs.MODULE
    }
    return {**os.environ, **importable(), **ours}


def device_shares(case: CaseSpec) -> list[dict[str, str]]:
    """Return the environment that limits each node to separate devices.

    All nodes are on this machine. Nothing is limited for ranks on CPUs, or if ranks share a GPU.
    """
    if case.device is Device.CPU or StandIn.SHARED_GPU in case.stand_in:
        return [{} for _ in case.nodes]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(case.world_size)]
    shares = []
    start = 0
    for ranks in case.nodes:
        shares.append({"CUDA_VISIBLE_DEVICES": ",".join(names[start : start + ranks])})
        start += ranks
    return shares


@contextlib.contextmanager
def held_port() -> Iterator[int]:
    """Yield a free port that no other process can get before torchrun listens on it.

    The port stays bound with SO_REUSEADDR, which allows torchrun to bind it, too.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Torchrun(Fleet):
    """The engine: one torchrun process per node, all on this machine, with a free rendezvous port.

    An agent of this package describes cases, because torchrun can only start whole worlds.
    """

    def __init__(self) -> None:
        super().__init__(self._agent, Where())
        self._asked: Mapping[str, Json] = SETTINGS

    def configure(self, settings: Mapping[str, Json]) -> None:
        """Take the settings of torchrun from a cluster file."""
        self._asked = {name: settings.get(name, usual) for name, usual in SETTINGS.items()}

    def _agent(self) -> tuple[Job, None]:
        """Start the agent that describes cases."""
        return InheritingJob([agent_command((sys.executable,), 0, {})]), None

    def probe(self) -> Capabilities:
        """Return that torchrun can be used, with the version of torch that includes it."""
        return Capabilities(available=True, version=f"torch {metadata.version('torch')}")

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """Return the command that each launch runs for each node."""
        folder = deployment.folder
        by_node = commands(
            deployment.nodes,
            "ID",
            "PORT",
            f"{folder}/launch.json",
            f"{folder}/torchrun",
            SETTINGS | dict(deployment.settings),
        )
        return tuple(Command(nodes=(i,), argv=tuple(argv)) for i, argv in enumerate(by_node))

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start the torchrun process of every node, and wait for all of them."""
        # Adopt the processes that ranks leave, so that they can be ended. Agents do this, too.
        evidence.adopt()
        out = Path(spec.out)
        beats = Beats(out / "beats", spec.case.world_size, create=True)
        (out / "launch.json").write_text(json.dumps(to_doc(spec)), encoding="utf-8")
        watched = WatchedLauncher(spec, out, beats)
        with held_port() as port:
            self._run(watched, port, self._asked, tick)
        agent = f"torchrun-{'-'.join(str(node.pid) for node in watched.nodes)}"
        return Ended(
            ranks=watched.ends(),
            agent=agent,
            noticed_at=watched.noticed_at,
            lasted_s=time.monotonic() - watched.began,
        )

    def launch_together(self, specs: Sequence[LaunchSpec], tick: Tick) -> list[Ended]:
        """Launch worlds one after the other, because each world uses the whole machine."""
        return [self.launch(spec, tick) for spec in specs]

    @staticmethod
    def _run(watched: WatchedLauncher, port: int, settings: Mapping[str, Json], tick: Tick) -> None:
        """Start torchrun for every node, and watch the ranks until all nodes have ended."""
        spec, out = watched.spec, watched.out
        logs = out / "work.torchrun"
        asked = commands(
            spec.case.nodes, spec.launch, port, f"{out}/launch.json", str(logs), settings
        )
        try:
            for i, (command, share) in enumerate(zip(asked, device_shares(spec.case), strict=True)):
                with (out / f"node{i}.log").open("w", encoding="utf-8") as log:
                    node = subprocess.Popen(
                        command,
                        env={**environment(), **share, **watched.family},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                    )
                    watched.nodes.append(node)
            while watched.alive:
                tick(min(watched.beats.read(r)[1] for r in range(spec.case.world_size)))
                time.sleep(
                    TICK_S
                )  # polls, because one call cannot wait for torchrun and a deadline
                watched.look()
        finally:
            watched.kill()
            shutil.rmtree(logs, ignore_errors=True)  # the output of ranks is in separate logs


class WatchedLauncher:
    """A world that torchrun runs.

    Its ranks are not children of this process, so they are watched through /proc. Their exit
    statuses come from torchrun's report, which only names the ranks whose failure it noticed.
    """

    def __init__(self, spec: LaunchSpec, out: Path, beats: Beats) -> None:
        self.spec = spec
        self.out = out
        self.beats = beats
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.family = evidence.new_family()
        self.noticed_at = 0.0
        self.began = time.monotonic()
        self._gone: dict[int, float] = {}
        self._states: dict[int, str] = {}
        self._failed_at: float | None = None
        self._doomed: set[int] = set()
        self._killed: set[int] = set()  # torchrun processes that this object killed

    @property
    def alive(self) -> bool:
        """Whether the torchrun process of any node is still running."""
        return any(node.poll() is None for node in self.nodes)

    def look(self) -> None:
        """Record which ranks are gone, and end the world if it has failed.

        The world is ended ``GRACE_S`` after a rank has failed, or immediately if a rank has made no
        progress until its deadline.
        """
        now = time.monotonic()
        for rank, pid in self._pids().items():
            if rank not in self._gone and not lives(pid):
                self._gone[rank] = now - self.began
        failed = any(node.returncode for node in self.nodes) or any(
            not self._done(r) for r in self._gone
        )
        if self._failed_at is None and (failed or self._silent()):
            self._failed_at = now if failed else now - GRACE_S
            self.noticed_at = time.time()
        if self._failed_at is not None and now - self._failed_at >= GRACE_S:
            self.end()

    def end(self) -> None:
        """Collect evidence from the remaining ranks, then kill them."""
        left = {r: pid for r, pid in self._pids().items() if r not in self._gone}
        self._states |= examine(self.out, left)
        for rank, pid in left.items():
            self._doomed.add(rank)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kill()

    def kill(self) -> None:
        """Kill the torchrun processes, which ends their ranks, and all that the ranks started."""
        for node in self.nodes:
            if node.poll() is None:
                self._killed.add(node.pid)
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()
        evidence.end(self.family, self._pids().values())

    def _pids(self) -> dict[int, int]:
        """Return the process ids that ranks have written so far."""
        pids = {}
        for rank in range(self.spec.case.world_size):
            path = self.out / f"rank{rank}.pid"
            if path.is_file() and (text := path.read_text(encoding="utf-8")):
                pids[rank] = int(text)
        return pids

    def _done(self, rank: int) -> bool:
        """Return whether a rank has reported that it is done."""
        return self.beats.read(rank)[0] is Phase.DONE

    def _silent(self) -> bool:
        """Return whether any rank has been silent past its deadline."""
        limits = self.spec.deadlines
        seen = (self.beats.read(rank) for rank in range(self.spec.case.world_size))
        return any(
            phase is not Phase.DONE and silent > limits.allowed_s(phase, step)
            for phase, step, silent in seen
        )

    def ends(self) -> tuple[RankEnd, ...]:
        """Return how every rank ended.

        The exit status comes from torchrun's report, or is 0 if the report does not name the rank.
        """
        statuses = self._reported()
        rank_ends = []
        order = sorted(self._gone, key=lambda r: self._gone[r])
        starts = list(itertools.accumulate(self.spec.case.nodes))
        pids = self._pids()
        for rank in range(self.spec.case.world_size):
            node = bisect.bisect_right(starts, rank)
            status = statuses.get(rank, 0)
            doomed = rank in self._doomed or status == -signal.SIGTERM
            rank_ends.append(
                rank_end(
                    self.out,
                    self.beats,
                    rank,
                    pid=pids.get(rank, 0),
                    exit_code=None if status < 0 or doomed else status,
                    number=-status if status < 0 else None,
                    killed=doomed,
                    order=order.index(rank) if rank in order else len(order) + rank,
                    node=node,
                    ended_s=self._gone.get(rank, time.monotonic() - self.began),
                    state=self._states.get(rank, ""),
                    lost=self._lost(node),
                )
            )
        return tuple(rank_ends)

    def _lost(self, node: int) -> str:
        """Return the signal with which another process ended a node's torchrun, or ""."""
        torchrun = self.nodes[node]
        if torchrun.returncode >= 0 or torchrun.pid in self._killed:
            return ""
        ended_by = signal.Signals(-torchrun.returncode)
        return f"node {node}: its torchrun was ended by signal {ended_by} ({ended_by.name})"

    def _reported(self) -> dict[int, int]:
        """Map the ranks that torchrun saw fail to their exit status, negative for a signal.

        A missing log is ignored, because a rank may have removed the folder.
        """
        logs = (self.out / f"node{i}.log" for i in range(len(self.nodes)))
        texts = (log.read_text(errors="replace", encoding="utf-8") for log in logs if log.is_file())
        failures = (pair for text in texts for pair in _FAILED.findall(text))
        return {int(rank): int(status) for rank, status in failures}


def build() -> Torchrun:
    """Return the engine."""
    return Torchrun()
