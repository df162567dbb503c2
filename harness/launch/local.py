"""One machine: an agent that has torch in memory forks fresh ranks, a launch costs 0.1 s."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from harness.codec import Json, from_doc, to_doc
from harness.errors import LaunchError
from harness.launch.engine import RANK_ENV, Ended, Tick
from harness.protocol import LaunchSpec, RankEnd
from harness.record import Described
from harness.spec import CaseSpec

ENGINE = dict(multi_node=False, one_machine=True)
TICK_S = 0.2


class LocalAgent:
    """The parent's end of one agent. Started on first use, from the calling (main) thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._stderr: IO[bytes] | None = None
        self._buffer = b""
        self.identity = ""

    def start(self) -> None:
        """Start the agent; returns at once, while it imports torch."""
        if self._process is not None:
            return
        ours, theirs = socket.socketpair()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (an undrained pipe would block it)
        env = {**os.environ, **RANK_ENV, "GLOO_SOCKET_IFNAME": "lo"}
        root = str(Path(__file__).parents[2])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (root, env.get("PYTHONPATH", ""))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "harness.worker.agent", str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            env=env,
            stdin=subprocess.DEVNULL,
            stderr=self._stderr,
            start_new_session=True,
        )
        theirs.close()
        self._control = ours

    def ready(self) -> None:
        """Wait until it has imported torch."""
        self.start()
        if not self.identity:
            self.identity = self._receive("ready", lambda: None)["agent"]

    def describe(self, requests: Sequence[tuple[CaseSpec, Mapping[str, str]]]) -> list[Described]:
        """Ask what each case will do; nothing is launched."""
        self.ready()
        self._send({"describe": [{"case": to_doc(c), "files": dict(f)} for c, f in requests]})
        return [from_doc(Described, d) for d in self._receive("described", lambda: None)]

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Start a world and wait until it is over; KeyboardInterrupt ends it first."""
        self.ready()
        self._send({"launch": to_doc(spec)})
        try:
            ended = self._receive("ended", tick)
        except BaseException:  # also a tick that broke: no answer may be left for the next launch
            self._send({"kill": True})
            self._receive("ended", lambda: None)
            raise
        assert ended["launch"] == spec.launch, f"asked for {spec.launch}, got {ended['launch']}"
        return Ended(
            ranks=tuple(from_doc(RankEnd, r) for r in ended["ranks"]), agent=str(ended["agent"])
        )

    def close(self) -> None:
        """Stop the agent."""
        if self._process is None:
            return
        assert self._control is not None and self._stderr is not None
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
        self._process, self._control, self.identity, self._buffer = None, None, "", b""

    def _send(self, message: Json) -> None:
        assert self._control is not None
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self._lost()

    def _receive(self, kind: str, tick: Tick) -> Json:
        assert self._control is not None
        while True:
            line, found, rest = self._buffer.partition(b"\n")
            if found:
                self._buffer = rest
                message = json.loads(line)
                if kind in message:
                    return message[kind]
                continue
            if select.select([self._control], [], [], TICK_S)[0]:
                data = self._control.recv(1 << 20)
                if not data:
                    self._lost()
                self._buffer += data
            tick()

    def _lost(self) -> None:
        """The agent died: say what it wrote last. Its ranks died with it."""
        process = self._process
        assert process is not None and self._stderr is not None
        process.kill()
        process.wait()
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip().splitlines()
        self._stderr.close()
        if self._control is not None:
            self._control.close()
        self._process, self._control = None, None
        self._buffer, self.identity = b"", ""
        raise LaunchError(
            f"the agent ended (status {process.wait()}): {said[-1] if said else 'it said nothing'}",
            where="local engine",
            expected="python -c 'import torch' to work in this environment",
            fix="scaleproof doctor",
        )


class Local:
    """The engine around one agent."""

    def __init__(self) -> None:
        self.agent = LocalAgent()

    def launch(self, spec: LaunchSpec, tick: Tick) -> Ended:
        """Fork a world from the agent."""
        return self.agent.launch(spec, tick)

    def close(self) -> None:
        """Stop the agent."""
        self.agent.close()


def build() -> Local:
    """A local engine; its agent starts with the first launch."""
    return Local()
