"""torchrun, on one node or several: fresh interpreters, the launcher that users know."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.beat import Beats, Phase
from harness.codec import from_doc, to_doc
from harness.launch.engine import RANK_ENV, Capabilities, Command, Deployment, Ended, Tick, Where
from harness.launch.fleet import Fleet
from harness.launch.inherit import InheritingJob, agent_command, die_with_parent
from harness.protocol import LaunchSpec, Node, RankEnd, RankError
from harness.record import Described
from harness.spec import CaseSpec, Device, StandIn

ENGINE = dict(multi_node=True, one_machine=True)
TICK_S = 0.2


def commands(nodes: Sequence[int], name: str, port: int | str, spec: str) -> list[list[str]]:
    """One command per node. Node 0 hosts the rendezvous; unequal nodes are fine."""
    out = []
    for node, ranks in enumerate(nodes):
        conf = f"is_host={int(node == 0)},join_timeout=60,last_call_timeout=1,read_timeout=20"
        out.append(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                f"--nnodes={len(nodes)}",
                f"--nproc-per-node={ranks}",
                "--rdzv-backend=c10d",
                f"--rdzv-endpoint=127.0.0.1:{port}",
                f"--rdzv-id={name}",
                f"--rdzv-conf={conf}",
                "--local-addr=127.0.0.1",
                "--max-restarts=0",
                *("-m", "harness.worker.torchrun_rank"),
                spec,
            ]
        )
    return out


def environment() -> dict[str, str]:
    """What every torchrun runs with."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    ours = {"GLOO_SOCKET_IFNAME": "lo", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return {**os.environ, **RANK_ENV, **ours, "PYTHONPATH": path}


def device_shares(case: CaseSpec) -> list[dict[str, str]]:
    """Each node's own devices: the nodes are all on this machine and may not share one."""
    if case.device is Device.CPU or StandIn.SHARED_GPU in case.stand_in:
        return [{} for _ in case.nodes]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(i) for i in range(case.world_size)]
    shares, start = [], 0
    for ranks in case.nodes:
        shares.append({"CUDA_VISIBLE_DEVICES": ",".join(names[start : start + ranks])})
        start += ranks
    return shares


class Torchrun:
    """One torchrun agent per node, all on this machine, rendezvous on a free port.

    Cases are described by an agent of ours: torchrun only ever starts whole worlds.
    """

    def __init__(self) -> None:
        self._agent = Fleet(self._begin, Where())

    def _begin(self) -> tuple[InheritingJob, None]:
        return InheritingJob([agent_command(sys.executable, 0, {})]), None

    def probe(self) -> Capabilities:
        """It comes with torch."""
        return Capabilities(available=True)

    def worlds(self) -> Torchrun:
        """It launches its worlds itself."""
        return self

    def plan(self, deployment: Deployment) -> tuple[Command, ...]:
        """What each launch will run, on each node."""
        found = commands(deployment.nodes, "ID", "PORT", f"{deployment.folder}/launch.json")
        return tuple(Command(nodes=(i,), argv=tuple(argv)) for i, argv in enumerate(found))

    @property
    def queued_s(self) -> float:
        """Nobody is waited for."""
        return 0.0

    @property
    def nodes(self) -> tuple[Node, ...]:
        """This machine."""
        return self._agent.nodes

    def start(self) -> None:
        """Start the agent that describes."""
        self._agent.start()

    def describe(self, requests: Sequence[tuple[CaseSpec, Mapping[str, str]]]) -> list[Described]:
        """Ask what each case will do; nothing is launched."""
        return self._agent.describe(requests)

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start every node's torchrun and wait for all of them."""
        out = Path(spec.out)
        beats = Beats(out / "beats", spec.case.world_size, create=True)
        (out / "launch.json").write_text(json.dumps(to_doc(spec)))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        shares = device_shares(spec.case)
        nodes: list[subprocess.Popen[bytes]] = []
        doomed = False
        try:
            for i, command in enumerate(
                commands(spec.case.nodes, spec.launch, port, f"{spec.out}/launch.json")
            ):
                with (out / f"node{i}.log").open("w") as log:
                    nodes.append(
                        subprocess.Popen(
                            command,
                            env={**environment(), **shares[i]},
                            stdout=log,
                            stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                            preexec_fn=die_with_parent,
                        )
                    )
            while any(n.poll() is None for n in nodes):
                tick(min(beats.read(r)[1] for r in range(spec.case.world_size)))
                time.sleep(TICK_S)  # torchrun has no handle to wait on together with a deadline
                if not doomed and (self._silent(spec, beats) or any(n.returncode for n in nodes)):
                    doomed = True
                    self._kill(nodes)
        finally:
            self._kill(nodes)
        ranks = tuple(self._end(out, beats, r, doomed) for r in range(spec.case.world_size))
        return Ended(ranks=ranks, agent=f"torchrun-{'-'.join(str(n.pid) for n in nodes)}")

    def close(self) -> None:
        """Nothing outlives a launch, but the agent that describes."""
        self._agent.close()

    @staticmethod
    def _silent(spec: LaunchSpec, beats: Beats) -> bool:
        """Whether any rank has been silent past its deadline."""
        limits = spec.deadlines
        for rank in range(spec.case.world_size):
            phase, step, silent = beats.read(rank)
            first = phase < Phase.STEADY and step == 0
            if phase is not Phase.DONE and silent > (
                limits.first_step_s if first else limits.step_s
            ):
                return True
        return False

    @staticmethod
    def _kill(nodes: list[subprocess.Popen[bytes]]) -> None:
        """SIGKILL the torchruns; their ranks asked the kernel to die with them."""
        for node in nodes:
            if node.poll() is None:
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()

    @staticmethod
    def _end(out: Path, beats: Beats, rank: int, doomed: bool) -> RankEnd:
        """What a rank left behind; torchrun's own exit status says nothing about ranks."""
        phase, step, silent = beats.read(rank)
        error_file = out / f"rank{rank}.error.json"
        error = None
        if error_file.is_file():
            error = from_doc(RankError, json.loads(error_file.read_text()))
        finished = (out / f"rank{rank}.json").is_file() and phase is Phase.DONE
        return RankEnd(
            rank=rank,
            pid=0,
            exit_code=0 if finished else 1 if error else None,
            signal=None,
            killed=doomed and not finished and error is None,
            finished=finished,
            phase=phase.name.lower(),
            step=step,
            silent_s=silent,
            order=rank,
            error=error,
        )


def build() -> Torchrun:
    """A torchrun engine."""
    return Torchrun()
