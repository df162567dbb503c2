"""The node agent: a process that keeps torch in memory and forks a new process for each rank.

It starts no thread and opens no device, because a forked process would inherit broken locks or a
broken driver. It runs in a separate session, so that Ctrl-C reaches only the program that started
it:

    python -m harness.training.agent.agent --fd N                              over a socket pair
    python -m harness.training.agent.agent --join HOST:PORT --token-file FILE  over the network

It answers the messages of ``wire.messages``. If the connection closes, it exits, and ends all
processes that its ranks started.
"""

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

if __name__ == "__main__":
    # The objects of torch's import stay alive. Searching them for garbage costs 0.9 s of 4 s.
    gc.disable()

import torch
import torch._dynamo
import torch.profiler
import torch.utils.checkpoint
from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as _preloaded  # noqa: F401

from harness.base import programs
from harness.base.documents import Json, from_doc, to_doc
from harness.base.errors import LaunchError, ScaleproofError
from harness.cases import Catalogue
from harness.host import leftovers, machine
from harness.host.surroundings import surroundings
from harness.launch.wire import evidence, trainjob
from harness.launch.wire.channel import Channel, ChannelError, dial, read_token, server
from harness.launch.wire.messages import Address, HowFar, LaunchSpec, Node, Share
from harness.training.accelerator import driver_started
from harness.training.agent import started_threads
from harness.training.agent.address import choose_interface, refuse_no_loopback
from harness.training.agent.answers import (
    describe_all,
    examined,
    in_child,
    observed,
    usable,
)
from harness.training.agent.world import World
from harness.training.observe import intake, threads
from harness.training.rank.sources import pass_over, sources
from harness.training.script import workplace

#: Seconds between two checks of the running worlds.
POLL_S = 0.1
#: Shortest time in s between two reports of the ranks' heartbeats.
BEAT_S = 0.2
#: Seconds to wait for the program. A user may start an agent long before the program.
JOIN_S = 600.0
#: Seconds to wait for a connection to another node.
REACH_S = 1.0
COMPILER = "torch._inductor.compile_fx"
#: Bytes of a file that are sent at a time, because traces can be larger than memory.
PIECE = 1 << 24


def reaches(address: Address) -> bool:
    """Return whether this node can connect to the listening socket of another node."""
    try:
        socket.create_connection((address.host, address.port), timeout=REACH_S).close()
    except OSError:
        return False
    return True


class Agent:
    """An agent that serves one program over one channel.

    ``scratch`` is the folder in which ranks write if they do not share a disk with the program.
    ``order`` is the number that a scheduler gave to this node, or -1.
    """

    def __init__(self, channel: Channel, address: str, order: int, scratch: Path | None) -> None:
        self.channel = channel
        self.address = address
        self.order = order
        self.scratch = scratch
        self.door = server(address, 0, 64)
        self.door.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.selector.register(channel, selectors.EVENT_READ, None)
        self.worlds: list[World] = []
        self.near: tuple[frozenset[int], ...] = ()
        self.beaten_at = 0.0
        self.reporter = trainjob.Reporter()

    def hello(self) -> None:
        """Send the facts of this node to the program."""
        here = observed()
        self.near = tuple(frozenset(cpus) for cpus in here["near"])
        node = Node(
            agent=f"{os.getpid()}-{int(time.time())}",
            door=Address(self.address, self.door.getsockname()[1]),
            order=self.order,
            machine=from_doc(machine.Machine, here["machine"]),
            software=here["software"],
            environment=here["environment"],
            accelerators=usable(),
            facts=here["facts"],
        )
        self.channel.send({"hello": to_doc(node)})

    def serve(self) -> None:
        """Answer messages until the connection closes, and leave no process behind."""
        try:
            while self.turn():
                pass
        except Exception as error:
            why = error.what if isinstance(error, ScaleproofError) else last_line(error)
            with contextlib.suppress(OSError):  # the program may have ended
                self.channel.send({"ends": why})
            raise
        finally:
            # SIGTERM often arrives when the channel closes. If it arrives right here, ``_stop``
            # raises SystemExit once, and the worlds must still be ended.
            try:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            finally:
                for world in self.worlds:
                    world.kill()
                self.reporter.close()
                evidence.end()

    def turn(self) -> bool:
        """Handle the messages that have arrived, then examine every world.

        Return whether the connection is still open.
        """
        for key, _ in self.selector.select(POLL_S if self.worlds else None):
            if key.data is not None:
                world, rank = key.data
                self.selector.unregister(key.fd)
                world.reap(rank)
                continue
            messages = self.channel.receive()
            if messages is None:
                return False  # the connection is closed
            for message, blob in messages:
                self.obey(message, blob)
        beat = time.monotonic() - self.beaten_at > BEAT_S
        self.beaten_at = time.monotonic() if beat else self.beaten_at
        for world in tuple(self.worlds):
            world.watch()
            if world.failing and not world.reported:
                world.reported = True
                self.say(world, {"failing": True})
            if beat:
                self.say(world, {"beats": world.seen()})
            if world.over:
                self.dismiss(world)
        return True

    def say(self, world: World, message: dict[str, Json], blob: bytes = b"") -> None:
        """Send a message about the launch of a world."""
        self.channel.send({**message, "of": world.spec.launch}, blob)

    def obey(self, message: dict[str, Json], blob: bytes) -> None:
        """Execute one message of the program."""
        if "describe" in message:
            self.channel.send({"described": describe_all(message["describe"])})
        elif "launch" in message:
            spec = from_doc(LaunchSpec, json.loads(blob))
            self.launch(spec, from_doc(Share, message["share"]))
        elif "kill" in message:
            for world in (w for w in self.worlds if w.spec.launch == message["kill"]):
                world.end()
        elif "preload" in message:
            preload_compiler()
            self.channel.send({"preloaded": message["preload"]})
        elif "examine" in message:
            self.channel.send({"examined": examined()})
        elif "standing" in message:
            standing = from_doc(HowFar, message["standing"])
            self.reporter.tell(standing.elapsed_s, standing.left_s, standing.launch)
        elif "reach" in message:
            self.empty_door()
            doors = [from_doc(Address, a) for a in message["reach"]]
            self.channel.send({"reached": [reaches(door) for door in doors]})

    def launch(self, spec: LaunchSpec, share: Share) -> None:
        """Fork this node's ranks of a world."""
        stay_forkable()
        if self.scratch is not None:
            spec = replace(spec, out=str(self.scratch / spec.launch))
        private = (self.channel.fileno(), self.door.fileno(), self.selector.fileno())
        world = World(spec, share, self.address, self.near, private)
        if share.store is None:
            self.say(world, {"store": to_doc(world.store)})
        for rank, descriptor in world.fds.items():
            self.selector.register(descriptor, selectors.EVENT_READ, (world, rank))
        self.worlds.append(world)

    def dismiss(self, world: World) -> None:
        """Clean up after a world that has ended, and report how its ranks ended.

        Only the result files of its ranks are kept.
        """
        self.worlds.remove(world)
        # The agent does not know which world an orphaned process belongs to. It therefore ends
        # orphans only when no world is running.
        if not self.worlds:
            evidence.end()
        world.beats_file.unlink(missing_ok=True)  # a script may have removed the folder
        for copy in (*world.out.glob("work*"), *workplace.temporaries(world.out)):
            shutil.rmtree(copy, ignore_errors=True)  # a script may have left files there
        for log in world.out.glob("rank*.log"):  # of ranks that were killed, too
            evidence.settle(log)
        if self.scratch is not None:
            self.ship(world)
        self.say(world, {"ended": [to_doc(world.ends[end]) for end in sorted(world.ends)]})

    def empty_door(self) -> None:
        """Close the connections that other nodes have opened, so that the queue never fills up."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self.door.accept()[0].close()

    def ship(self, world: World) -> None:
        """Send the files that the ranks wrote to the program, and remove them here.

        A rank may already have removed the folder.
        """
        for path in sorted(world.out.glob("*")):
            with path.open("rb") as file:
                begins = True
                while (piece := file.read(PIECE)) or begins:
                    self.say(world, {"file": path.name, "begins": begins}, piece)
                    begins = False
        shutil.rmtree(world.out, ignore_errors=True)


def last_line(error: Exception) -> str:
    """Return the last line of an unexpected error's traceback, with file and line number."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})"


def not_forkable() -> str:
    """Return why this process cannot fork ranks: the threads or the driver that it has started.

    A forked rank would inherit them in a broken state. The result is "" if there are none.
    """
    if started := started_threads():
        return f"threads {', '.join(started)}"
    return "a CUDA driver" if driver_started() else ""


def stay_forkable() -> None:
    """Raise LaunchError if a newly forked rank would inherit a broken lock or driver."""
    if started := not_forkable():
        raise LaunchError(
            f"the agent has started {started}: it cannot fork ranks{surroundings()}",
            where="agent",
            expected="a single thread and no GPU driver after the imports of torch and its plugins",
            fix="python -X importtime -c 'import torch' 2>&1 | grep -v ' torch'",
        )


def preload_compiler() -> None:
    """Import Inductor in this process, unless its import starts a thread or a driver.

    Without this, the import would cost 0.9 s in every rank that compiles. A child process tries the
    import first, because Inductor's imports may look for GPUs and thereby start threads.
    """

    def tried() -> str:
        """Import Inductor, and return the threads or the driver that the import has started."""
        importlib.import_module(COMPILER)
        return not_forkable()

    if COMPILER not in sys.modules and in_child(tried) == {"ok": ""}:
        importlib.import_module(COMPILER)


def preload() -> None:
    """Import modules that torch imports lazily, and the strategies and compressors of this package.

    Without this, the imports would cost 1.0 s in every rank that trains.
    """
    parameter: Any = torch.nn.Parameter(torch.empty(0))
    torch.optim.AdamW([parameter])
    torch.optim.SGD([parameter], lr=0.1)
    shipped = Catalogue().entries
    for entry in (e for kind in ("strategies", "compressors") for e in shipped[kind].values()):
        if entry.shipped:  # a user's file is imported after the fork, by the rank that needs it
            with contextlib.suppress(ImportError):  # the error is reported if a case uses the file
                importlib.import_module(entry.module)
    sources()  # compute digests now, because later edits do not affect the forked ranks
    intake.prepare()
    for name in ("torch.profiler._cupti_monitor", "torch.testing._internal.distributed.fake_pg"):
        with contextlib.suppress(ImportError):  # some supported versions of torch do not have it
            importlib.import_module(name)
    pass_over()


def scheduled_order() -> int:
    """Return this agent's number among all agents as Slurm or Kubernetes set it, or -1."""
    # The scheduler numbers the agents of each group of equal nodes separately. This is the number
    # of the first agent in the group.
    first = int(os.environ.get("SCALEPROOF_FIRST", "0"))
    for name in ("SLURM_PROCID", "JOB_COMPLETION_INDEX"):
        if name in os.environ:
            return first + int(os.environ[name])
    return -1


def secret(file: Path | None) -> bytes:
    """Return the token from its file, or from an environment variable that only this pod has."""
    if file is not None:
        return read_token(file)
    return os.environ.pop("SCALEPROOF_TOKEN", "").encode()


def _stop(number: int = 0, frame: FrameType | None = None) -> NoReturn:
    """Signal handler: exit, and ignore further SIGTERM signals meanwhile."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def main(argv: list[str]) -> int:
    """Run the agent with the options that the module docstring lists; return the exit status."""
    parser = argparse.ArgumentParser(prog="scaleproof jobs join", description=__doc__)
    parser.add_argument("--fd", type=int, help="number of an inherited socket")
    parser.add_argument(
        "--parent", type=int, help="process id of the parent; the agent ends when it ends"
    )
    parser.add_argument("--join", metavar="HOST:PORT")
    parser.add_argument("--token-file", type=Path, metavar="FILE")
    parser.add_argument(
        "--wait", type=float, default=JOIN_S, metavar="S", help="seconds to wait for the program"
    )
    parser.add_argument("--address", help="this node's address for other nodes")
    parser.add_argument("--order", type=int, default=scheduled_order(), help="this node's number")
    asked = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, _stop)
    # If a program has started this agent, Ctrl-C is meant for the program.
    signal.signal(signal.SIGINT, _stop if asked.fd is None else signal.SIG_IGN)
    if asked.parent:
        threads.die_with_parent(asked.parent, signal.SIGTERM)
    programs.own_folder()
    evidence.adopt()
    leftovers.remove()
    with contextlib.ExitStack() as stack:
        try:
            if asked.fd is not None:
                refuse_no_loopback()
                channel = Channel(socket.socket(fileno=asked.fd), dialed=True)
                scratch = None
            else:
                channel = dial(asked.join, secret(asked.token_file), asked.wait)
                folder = tempfile.TemporaryDirectory(prefix=leftovers.AGENT)
                scratch = Path(stack.enter_context(folder))
                leftovers.hold(scratch)
            address = asked.address or channel.address() or "127.0.0.1"
            choose_interface(address)
            preload()
            gc.freeze()
            gc.unfreeze()  # moves all objects to the oldest generation
            gc.enable()
            agent = Agent(channel, address, asked.order, scratch)
            agent.hello()
            agent.serve()
        except ScaleproofError as error:
            sys.stderr.write(f"ERROR: {error}\n")
            return int(error.exit)
        except (OSError, ChannelError) as error:
            sys.stderr.write(f"ERROR: lost the connection to the run: {error}\n")
            return 1
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed or missing
            stream.flush()
    # A normal exit of the interpreter tears torch down, which takes 0.8 s.
    os._exit(status)
