"""Manage the ranks of one launch on this node, from the fork to the last exit."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from harness.cases import Device, StandIn
from harness.host import cores
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.channel import server
from harness.launch.wire.evidence import examine, memory_kills, rank_end
from harness.launch.wire.messages import Address, LaunchSpec, RankEnd, Share
from harness.training.agent.follower import Follower
from harness.training.observe import threads
from harness.training.rank.rank import leave, run_rank
from harness.training.rank.setup import RankPlace, cpus_of

#: A slowed rank runs and waits once in each period of this many seconds. Most steps are longer.
PERIOD_S = 0.02
#: Root folder, quota file and format of the quota. The first entry is for cgroup v2, the second for
#: v1.
GROUPS = (
    (Path("/sys/fs/cgroup"), "cpu.max", "{quota} {period}"),
    (Path("/sys/fs/cgroup/cpu"), "cpu.cfs_quota_us", "{quota}"),
)


class Straggler:
    """A process that is slowed down on purpose. It gets the fraction ``share`` of its core's time.

    ``way`` is "quota" if a control group limits the process. It is "duty cycle" if a helper process
    stops and continues it.
    """

    def __init__(
        self, pid: int, share: float, groups: Sequence[tuple[Path, str, str]] = GROUPS
    ) -> None:
        self.pid = pid
        self._helper = 0
        self._group = next(filter(None, (_limited(pid, share, *group) for group in groups)), None)
        self.way = "quota" if self._group is not None else "duty cycle"
        if self._group is None:
            self._helper = _fork_duty(pid, share)

    def release(self) -> None:
        """Let the process run again, so that its state can be examined."""
        if self._helper:
            os.kill(self._helper, signal.SIGKILL)
            os.waitpid(self._helper, 0)
            self._helper = 0
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """Remove the control group after the process has ended."""
        self.release()
        if self._group is not None:
            with contextlib.suppress(OSError):
                self._group.rmdir()


def _limited(pid: int, share: float, root: Path, file: str, form: str) -> Path | None:
    """Move a process into a new control group with a quota, and return the group's folder.

    Return None if this user is not allowed to make a control group.
    """
    group = root / f"scaleproof-{pid}"
    period = round(PERIOD_S * 1e6)
    if not (root / "cgroup.procs").is_file():
        return None
    for stale in root.glob("scaleproof-*"):  # killed agents may have left empty groups
        with contextlib.suppress(OSError):
            stale.rmdir()
    try:
        group.mkdir()
        if "{period}" not in form:
            _tell(group / "cpu.cfs_period_us", str(period))
        _tell(group / file, form.format(quota=round(share * period), period=period))
        _tell(group / "cgroup.procs", str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group


def _tell(file: Path, text: str) -> None:
    """Write to an existing file of the kernel; raise OSError if it does not exist."""
    with file.open("r+", encoding="utf-8") as handle:
        handle.write(text)


def _fork_duty(pid: int, share: float) -> int:
    """Fork a child that stops and continues a process periodically, and return the child's id.

    The child ends with this process.
    """
    parent = os.getpid()
    helper = os.fork()
    if helper:
        return helper
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        threads.die_with_parent(parent)
        threads.precise_sleep()
        while True:
            os.kill(pid, signal.SIGCONT)
            time.sleep(share * PERIOD_S)
            os.kill(pid, signal.SIGSTOP)
            time.sleep((1 - share) * PERIOD_S)
    finally:
        os._exit(0)


#: Seconds that the other ranks have to write their errors after the first failure of a rank.
GRACE_S = 1.0
#: Seconds after which a rank that has exceeded its deadline is checked again. If it is still late,
#: the world is ended.
CONFIRM_S = 0.5

#: Seconds over which ranks have to be idle, and the largest share of a core that an idle rank uses.
IDLE_S = 10.0
IDLE_SHARE = 0.02


def device_of(rank: int, share: Share, num_visible: int, per_rank: int = 1) -> int:
    """Return the index of a rank's first device among the devices that this agent sees.

    A scheduler may make all devices of a node visible to each of its tasks, or only some to each.
    """
    if share.agents > 1 and num_visible < share.agents * per_rank:
        return (rank - share.first) * per_rank
    return share.device + (rank - share.node_first) * per_rank


class World:
    """The ranks of a world that run on this node.

    ``address`` is the address of this node for other nodes, at which rank 0 serves the rendezvous.
    ``near`` are the CPUs next to each visible GPU. ``private`` are the agent's sockets, which ranks
    must close.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        share: Share,
        address: str,
        near: Sequence[frozenset[int]],
        private: Collection[int] = (),
    ) -> None:
        self.spec = spec
        self.share = share
        self._near = near
        self._private = private
        self.began = time.monotonic()
        self.out = Path(spec.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.beats_file = self.out / f"beats{share.first}"
        self.beats = Beats(self.beats_file, spec.case.world_size, create=True)
        self.ranks = range(share.first, share.first + share.count)
        self.ends: dict[int, RankEnd] = {}
        self.failing = False
        self.reported = False  # whether the failure was reported
        self._doomed: set[int] = set()
        self._states: dict[int, str] = {}
        self._kills_before = memory_kills()
        self._failed_at: float | None = None
        self._overdue_at: float | None = None
        # since when all ranks have been silent, and the CPU time that they had used until then
        self._silent_from: tuple[float, float] | None = None
        self.pids: dict[int, int] = {}
        self.fds: dict[int, int] = {}
        listener: socket.socket | None = None
        if share.store is not None:
            self.store = share.store
        else:
            listener = server(address, 0, spec.case.world_size + 8)
            self.store = Address(address, listener.getsockname()[1])
        agent = os.getpid()
        for rank in self.ranks:
            pid = os.fork()
            if pid == 0:
                self._become(rank, listener, agent)
            self.pids[rank] = pid
            self.fds[rank] = os.pidfd_open(pid)
        if listener is not None:
            listener.close()
        self._follower: Follower | None = None
        if spec.case.device is Device.CUDA:
            self._follower = Follower(spec, share.first, self._places, private)
        slowed = dict(spec.case.slowed)
        if share.node in spec.case.slow_nodes and StandIn.PACED not in spec.case.stand_in:
            slowed |= dict.fromkeys(self.ranks, spec.case.slow_nodes[share.node])
        self.stragglers = {r: Straggler(self.pids[r], slowed[r]) for r in self.ranks if r in slowed}
        for rank, straggler in self.stragglers.items():
            (self.out / f"rank{rank}.straggler").write_text(
                f"{slowed[rank]} by {straggler.way}\n", encoding="utf-8"
            )

    def _become(self, rank: int, listener: socket.socket | None, agent: int) -> None:
        """Run a rank in the forked process. This never returns."""
        code = 1
        try:
            os.setpgid(0, 0)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for descriptor in self._private:
                os.close(descriptor)
            if listener is not None and rank:
                listener.close()
            share = self.share
            per_rank = self.spec.case.devices_per_rank
            local_rank = rank - share.node_first
            device = device_of(rank, share, torch.cuda.device_count(), per_rank)
            place = RankPlace(
                rank=rank,
                world_size=self.spec.case.world_size,
                local_rank=local_rank,
                device=device,
                cpus=cpus_of(
                    self.spec.case,
                    device,
                    share.core + local_rank * per_rank,
                    self._near,
                    share.agents,
                ),
                node=share.node,
                parent=agent,
                store=lambda: self._meet(rank, listener),
            )
            code = run_rank(self.spec, place, self.beats)
        finally:
            leave(code)

    def _meet(self, rank: int, listener: socket.socket | None) -> dist.Store:
        """Return a rank's client of the rendezvous store. Rank 0 also serves the store.

        Rank 0 uses the socket that the agent has already bound, so no other process can take the
        port in the meantime.
        """
        timeout = timedelta(seconds=self.spec.deadlines.start_s)
        size = self.spec.case.world_size
        host = self.store.host
        port = self.store.port
        if rank or listener is None:
            return dist.TCPStore(host, port, size, False, timeout)
        return dist.TCPStore(
            host,
            port,
            size,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
            use_libuv=True,
        )

    def _places(self) -> set[int]:
        """Return the indices, among the visible devices, of the devices of this node's ranks."""
        visible = torch.cuda.device_count()
        if StandIn.SHARED_GPU in self.spec.case.stand_in:
            return set(range(visible))
        per_rank = self.spec.case.devices_per_rank
        first = (device_of(rank, self.share, visible, per_rank) for rank in self.ranks)
        return {place + k for place in first for k in range(per_rank)}

    @property
    def over(self) -> bool:
        """Whether all ranks and the process that reads their devices have ended."""
        if len(self.ends) < self.share.count:
            return False
        return self._follower is None or self._follower.ended()

    def seen(self) -> list[tuple[int, int, float]]:
        """Return, for every rank, its phase, its step and the seconds since its last heartbeat."""
        beats = (self.beats.read(rank) for rank in self.ranks)
        return [(int(phase), step, silent) for phase, step, silent in beats]

    def reap(self, rank: int) -> None:
        """Collect the exit status and the evidence of a rank that has ended."""
        straggler = self.stragglers.pop(rank, None)
        if straggler is not None:
            straggler.release()
        pid, status = os.waitpid(self.pids[rank], 0)
        if straggler is not None:
            straggler.close()
        os.close(self.fds.pop(rank))
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        killed = rank in self._doomed
        end = rank_end(
            self.out,
            self.beats,
            rank,
            pid=pid,
            exit_code=None if number is not None else os.WEXITSTATUS(status),
            number=number,
            killed=killed,
            order=len(self.ends),
            node=self.share.node,
            ended_s=time.monotonic() - self.began,
            state=self._states.get(rank, ""),
            out_of_memory=number == signal.SIGKILL
            and not killed
            and memory_kills() > self._kills_before,
        )
        self.ends[rank] = end
        if not (end.finished and end.exit_code == 0) and self._failed_at is None:
            self._failed_at = time.monotonic()
            self.failing = True

    def watch(self) -> None:
        """End the world if a rank failed ``GRACE_S`` ago or has exceeded its deadline."""
        now = time.monotonic()
        if self._failed_at is not None:
            if now - self._failed_at > GRACE_S:
                self.end()
            return
        if not self._overdue():
            self._overdue_at = None
        elif self._overdue_at is None:
            self._overdue_at = now  # the world ends only if it is still overdue a little later
        elif now - self._overdue_at > CONFIRM_S:
            self.end()

    def end(self) -> None:
        """End the remaining ranks of the world, after recording what each of them was doing."""
        for straggler in self.stragglers.values():
            straggler.release()
        if set(self.fds) - self._doomed:
            self._states = examine(self.out, {rank: self.pids[rank] for rank in self.fds})
            self.kill()
        self.failing = True
        self._failed_at = self._failed_at or time.monotonic()

    def _overdue(self) -> bool:
        """Return whether a rank has been silent for longer than its phase allows."""
        limits = self.spec.deadlines
        beats = [self.beats.read(rank) for rank in self.fds]
        late = any(silent > limits.allowed_s(phase, step) for phase, step, silent in beats)
        return late or (bool(limits.idle_s) and self._idle(beats))

    def _idle(self, beats: Sequence[tuple[Phase, int, float]]) -> bool:
        """Return whether all ranks of the world wait, so that none of them can ever go on.

        A rank that computes, loads or evaluates uses a core.
        """
        waiting = all(
            Phase.GROUP < phase < Phase.FINISH and step and silent > self.spec.deadlines.idle_s
            for phase, step, silent in beats
        )
        if not waiting or self.share.count < self.spec.case.world_size:
            self._silent_from = None
            return False
        now, used_s = time.monotonic(), cores.of_groups(set(self.pids.values()))
        since, used_before_s = self._silent_from = self._silent_from or (now, used_s)
        if now - since < IDLE_S:
            return False
        idle = used_s - used_before_s < IDLE_SHARE * len(beats) * (now - since)
        self._silent_from = self._silent_from if idle else (now, used_s)
        return idle

    def kill(self) -> None:
        """Send SIGKILL to all remaining ranks and to the processes in their process groups."""
        if self._follower is not None:
            self._follower.kill()
        for rank in self.fds:
            self._doomed.add(rank)
            for target in (os.killpg, os.kill):
                try:
                    target(self.pids[rank], signal.SIGKILL)
                except ProcessLookupError:
                    continue
