"""The node agent: has torch in memory, starts no thread, touches no device, forks fresh ranks.

Started by exec as ``python -m harness.worker.agent FD`` from the parent's main thread, in a
session of its own so that Ctrl-C reaches only the parent. It answers ``describe`` and ``launch``
(see ``harness.protocol``) and dies with the parent, and every rank with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor
import torch.nn.parallel
import torch.profiler
import torch.utils.checkpoint
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as _preloaded  # noqa: F401

import harness.strategies.compressed
import harness.strategies.fsdp
import harness.strategies.pipeline
import harness.strategies.single  # noqa: F401
from harness.beat import Beats, Phase
from harness.capture import threads
from harness.codec import Json, from_doc, to_doc
from harness.protocol import LaunchSpec, RankEnd, RankError
from harness.record import Described
from harness.spec import CaseSpec
from harness.worker.context import load
from harness.worker.describe import describe
from harness.worker.rank import Place, leave, run_rank

GRACE_S = 1.0  # after the first rank has failed: time for the others to write down what they saw
POLL_S = 0.1
CONFIRM_S = 0.5  # a rank counts as silent when it still is after this
DESCRIBE_S = 60.0  # importing a user's files and building a model on meta tensors


class World:
    """The ranks of one launch, from fork to the last end."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.size = spec.case.world_size
        self.out = Path(spec.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.beats = Beats(self.out / "beats", self.size, create=True)
        self.ends: dict[int, RankEnd] = {}
        self.doomed: set[int] = set()
        self.states: dict[int, str] = {}
        self.first_failure: float | None = None
        self.overdue_at: float | None = None
        self.pids: dict[int, int] = {}
        self.fds: dict[int, int] = {}
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(self.size + 8)
        port = listener.getsockname()[1]
        agent = os.getpid()
        for rank in range(self.size):
            pid = os.fork()
            if pid == 0:
                self._become(rank, listener, port, agent)
            self.pids[rank] = pid
            self.fds[rank] = os.pidfd_open(pid)
        listener.close()

    def _become(self, rank: int, listener: socket.socket, port: int, agent: int) -> None:
        """In the forked rank: never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            if rank:
                listener.close()
            place = Place(
                rank=rank,
                world_size=self.size,
                local_rank=rank,
                local_world_size=self.size,
                node=0,
                parent=agent,
                store=lambda: self._store(rank, listener, port),
            )
            code = run_rank(self.spec, place, self.beats)
        finally:
            leave(code)

    def _store(self, rank: int, listener: socket.socket, port: int) -> dist.Store:
        """Rank 0 serves on the socket that the agent bound: no port is ever raced for."""
        timeout = timedelta(seconds=self.spec.deadlines.start_s)
        if rank:
            return dist.TCPStore("127.0.0.1", port, self.size, False, timeout)
        return dist.TCPStore(
            "127.0.0.1", port, self.size, True, timeout,
            wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True,
        )  # fmt: skip

    @property
    def over(self) -> bool:
        """Whether every rank has ended."""
        return len(self.ends) == self.size

    def reap(self, rank: int) -> None:
        """Note how a rank ended."""
        pid, status = os.waitpid(self.pids[rank], 0)
        os.close(self.fds.pop(rank))
        phase, step, silent = self.beats.read(rank)
        error_file = self.out / f"rank{rank}.error.json"
        error = None
        if error_file.is_file():
            error = from_doc(RankError, json.loads(error_file.read_text()))
        stack_file = self.out / f"rank{rank}.stack"
        stack = stack_file.read_text() if stack_file.is_file() else ""
        finished = (self.out / f"rank{rank}.json").is_file() and phase is Phase.DONE
        signaled = os.WIFSIGNALED(status)
        end = RankEnd(
            rank=rank,
            pid=pid,
            exit_code=None if signaled else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if signaled else None,
            killed=rank in self.doomed,
            finished=finished,
            phase=phase.name.lower(),
            step=step,
            silent_s=silent,
            order=len(self.ends),
            error=error,
            state=self.states.get(rank, ""),
            stack=stack,
        )
        self.ends[rank] = end
        if (not finished or end.exit_code != 0) and self.first_failure is None:
            self.first_failure = time.monotonic()

    def watch(self) -> None:
        """End the world when a rank failed a grace ago, or has been silent past its deadline."""
        now = time.monotonic()
        if self.first_failure is not None:  # also: examined and killed already, not yet reaped
            if now - self.first_failure > GRACE_S:
                self.kill()
            return
        if not self.overdue():
            self.overdue_at = None
        elif self.overdue_at is None:
            self.overdue_at = now  # ended only if it is still overdue a little later
        elif now - self.overdue_at > CONFIRM_S:
            self.examine()
            self.kill()
            self.first_failure = now

    def overdue(self) -> bool:
        """Whether a rank has been silent for longer than its phase allows."""
        limits = self.spec.deadlines
        for rank in self.fds:
            phase, step, silent = self.beats.read(rank)
            first = phase in (Phase.BUILD, Phase.GATE) or (phase is Phase.WARMUP and step == 0)
            limit = limits.first_step_s if first else limits.step_s
            if silent > (limits.start_s if phase <= Phase.GROUP else limit):
                return True
        return False

    def examine(self) -> None:
        """Before a hung world is ended: every rank's process state and stacks."""
        self.states = {}
        for rank in self.fds:
            try:
                status = Path(f"/proc/{self.pids[rank]}/status").read_text()
            except OSError:
                continue
            self.states[rank] = next(
                (line.split()[1] for line in status.splitlines() if line.startswith("State")), ""
            )
            os.kill(self.pids[rank], signal.SIGUSR1)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline and not all(
            (self.out / f"rank{r}.stack").stat().st_size
            for r in self.fds
            if self.states.get(r) != "T"
        ):
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL every rank that is left, and whatever it started."""
        for rank in self.fds:
            self.doomed.add(rank)
            for target in (os.killpg, os.kill):
                try:
                    target(self.pids[rank], signal.SIGKILL)
                except ProcessLookupError:
                    continue


def in_child(function: Callable[[], Json]) -> Json:
    """Run in a forked child, so that a user's files are never imported into the agent.

    Whatever they print is dropped, and a child that does not answer is ended.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            threads.die_with_parent(agent)
            os.close(reader)
            silence = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silence, 1)
            os.dup2(silence, 2)
            try:
                answer = {"ok": function()}
            except BaseException as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writer, "w") as pipe:
                json.dump(answer, pipe)
        finally:
            os._exit(0)
    os.close(writer)
    text, deadline = b"", time.monotonic() + DESCRIBE_S
    with selectors.DefaultSelector() as selector:
        selector.register(reader, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            if selector.select(left):
                chunk = os.read(reader, 1 << 16)
                text += chunk
                if not chunk:
                    break
    os.close(reader)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if not text:
        return {"error": f"its files gave no answer within {DESCRIBE_S:.0f} s, or crashed"}
    return json.loads(text)


def describe_all(requests: list[dict[str, Json]]) -> list[Json]:
    """The answers in order; a file that cannot be imported makes its cases unsupported."""
    answers = []
    for request in requests:
        case = from_doc(CaseSpec, request["case"])

        def ask(case: CaseSpec = case, files: dict[str, str] = request["files"]) -> Json:
            return to_doc(describe(load(files), case))

        answer = in_child(ask)
        if "error" in answer:
            answers.append(to_doc(Described(error=answer["error"])))
        else:
            answers.append(answer["ok"])
    return answers


class Agent:
    """Serves one parent over one socket."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.buffer = b""
        self.identity = f"{os.getpid()}-{int(time.time())}"

    def send(self, message: Json) -> None:
        """One line of JSON."""
        self.control.sendall(json.dumps(message).encode() + b"\n")

    def lines(self) -> list[Json] | None:
        """Whole messages that have arrived; None when the parent is gone."""
        data = self.control.recv(1 << 20)
        if not data:
            return None
        *whole, self.buffer = (self.buffer + data).split(b"\n")
        return [json.loads(line) for line in whole]

    def serve(self) -> None:
        """Answer until the parent is gone."""
        while (messages := self.lines()) is not None:
            for message in messages:
                if "describe" in message:
                    self.send({"described": describe_all(message["describe"])})
                elif "launch" in message:
                    self.launch(from_doc(LaunchSpec, message["launch"]))

    def launch(self, spec: LaunchSpec) -> None:
        """Fork a world and stay with it until it is over."""
        num_threads = len(os.listdir("/proc/self/task"))
        fresh = num_threads == 1 and not torch.cuda.is_initialized()
        assert fresh, f"the agent has {num_threads} threads or a CUDA context: it may not fork"
        world = World(spec)
        with selectors.DefaultSelector() as selector:
            selector.register(self.control, selectors.EVENT_READ, None)
            for rank, fd in world.fds.items():
                selector.register(fd, selectors.EVENT_READ, rank)
            while not world.over:
                for key, _ in selector.select(POLL_S):
                    if key.data is None:
                        messages = self.lines()
                        if messages is None or any("kill" in m for m in messages):
                            world.kill()
                        if messages is None:
                            selector.unregister(self.control)
                    else:
                        selector.unregister(key.fd)
                        world.reap(key.data)
                world.watch()
        (world.out / "beats").unlink()
        ranks = [to_doc(world.ends[r]) for r in sorted(world.ends)]
        self.send({"ended": {"launch": spec.launch, "ranks": ranks, "agent": self.identity}})


def preload() -> None:
    """Import what torch imports lazily: else it costs every rank that trains 1.0 s."""
    parameter: Any = torch.nn.Parameter(torch.empty(0))
    torch.optim.AdamW([parameter])
    torch.optim.SGD([parameter], lr=0.1)
    for name in ("torch.profiler._cupti_monitor", "torch.testing._internal.distributed.fake_pg"):
        with contextlib.suppress(ImportError):  # not in every supported torch
            importlib.import_module(name)


def main(argv: list[str]) -> None:
    """``python -m harness.worker.agent FD PARENT_PID``"""
    fd, parent = int(argv[1]), int(argv[2])
    threads.die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    preload()
    control = socket.socket(fileno=fd)
    agent = Agent(control)
    agent.send({"ready": {"agent": agent.identity, "torch": torch.__version__}})
    agent.serve()


if __name__ == "__main__":
    main(sys.argv)
