"""Set one rank up: its device, cores and process group, and the record that it leaves behind."""

import dataclasses
import hashlib
import io
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from harness.cases import CaseSpec, Device, Dim, Mesh, StandIn
from harness.host import cores
from harness.host.environment import names_interface
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import LaunchSpec, Script
from harness.record import ExecutedModel, RankRecord
from harness.record.store import Samples
from harness.training.accelerator import Accelerator, numbered
from harness.training.context import Loaded, RankContext, make_batch, within
from harness.training.data import Sampler
from harness.training.describe import case_batching
from harness.training.feeds import Source, whole_epochs
from harness.training.observe import kernel_counters, logged, threads
from harness.training.observe.memory import Memory
from harness.training.rank import joining, sources
from harness.training.rank.joining import Barrier
from harness.training.rank.window import Measured
from harness.training.tuning import kernels


@dataclasses.dataclass(frozen=True)
class RankPlace:
    """The position of a rank in its world and on its node.

    ``device`` is the index of the rank's first device among those that its agent sees. ``cpus`` are
    the cores that the rank is pinned to. ``parent`` is the process id of the agent, or 0 if the
    rank may outlive the agent. ``store`` returns the rendezvous store. It is called after the
    process has been set up.
    """

    rank: int
    world_size: int
    local_rank: int
    node: int
    device: int
    cpus: tuple[int, ...]
    parent: int
    store: Callable[[], dist.Store]


class StartupTimes:
    """A stopwatch for the phases before a rank's first step.

    ``seconds`` maps the name of each phase to its duration in s.
    """

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str) -> None:
        """End ``phase``: record the time since the previous call as its duration."""
        now = time.monotonic()
        self.seconds[phase] = now - self._last
        self._last = now

    @property
    def total_s(self) -> float:
        """The seconds since this stopwatch was made."""
        return time.monotonic() - self._began


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank that has joined its world; every task receives one.

    ``out`` is the folder of the launch, ``meet`` a barrier of all ranks, and ``lap`` times the
    phases of the set-up. ``tuned_threads`` is the number of gloo threads that were given another
    scheduling policy. ``known_modules`` are the modules that were imported before the rank was
    forked. ``shared`` names the writable shared memory and the sockets that the rank had after its
    set-up. ``prefix`` is put before the suffix of the files that the rank writes.
    """

    spec: LaunchSpec
    place: RankPlace
    out: Path
    accelerator: Accelerator
    meet: Barrier
    lap: StartupTimes
    tuned_threads: int
    known_modules: frozenset[str]
    shared: frozenset[str]
    beats: Beats
    prefix: str = ""

    def beat(self, phase: Phase, step: int = 0) -> None:
        """Write a heartbeat. The agent ends a world if one of its ranks is silent for too long."""
        self.beats.write(self.place.rank, phase, step)

    def file(self, suffix: str) -> Path:
        """Return the path of a file that this rank writes, for example ``rank0.json``.

        Files about the steps after the timed window have a prefix before the suffix.
        """
        return self.out / f"rank{self.place.rank}.{self.prefix}{suffix}"

    def slow_down(self, loaded: Loaded) -> None:
        """Slow the model down if the case makes this rank's node slow on purpose.

        Simulated compute needs no core, so it is slowed down by longer waits instead of a CPU
        quota.
        """
        slow_down = getattr(loaded.model, "slow_down", None)
        if slow_down is not None:
            slow_down(self.spec.case.slow_nodes.get(self.place.node, 1.0))

    def context(self, loaded: Loaded, case: CaseSpec) -> RankContext:
        """Return the context that a strategy receives for ``case``.

        The world and the case's mesh may differ in size, because a reference launch has one rank
        for each shard. The mesh is then plain data parallelism over the ranks of the world.
        """
        mesh = loaded.supports.mesh(case)
        if self.place.world_size != mesh.ranks:
            mesh = Mesh({Dim.DP: self.place.world_size})
        return RankContext(
            case=case,
            rank=self.place.rank,
            world_size=self.place.world_size,
            device=self.accelerator.device,
            batching=case_batching(loaded, case),
            loss=loaded.model.loss,
            compressor=loaded.compressor(case),
            mesh=mesh,
            shard=mesh.shard(self.place.rank),
            sample=lambda count: (
                make_batch(
                    loaded, case, torch.zeros(count, dtype=torch.int64), torch.device("meta")
                ).inputs
            ),
        )

    def source(
        self,
        loaded: Loaded,
        ctx: RankContext,
        steps: int,
        pooled: Callable[[Tensor], None] = lambda inputs: None,
        sampler: Sampler | None = None,
    ) -> Source:
        """Return the source from which an input makes its batches.

        By default all batches have their full size, and no sample is repeated within ``steps``
        steps. ``pooled`` is called with the inputs that are made before the training.
        """
        place = self.place
        local_rank, size = within(self.spec.case.nodes, place.rank)
        return Source(
            loaded=loaded,
            ctx=ctx,
            steps=steps,
            pooled=pooled,
            meet=self.meet,
            sampler=sampler or whole_epochs(ctx, getattr(self.spec.task, "data_seed", 0)),
            folder=self.out / f"work.data{place.node}",
            local_rank=local_rank,
            local_size=size,
        )

    def record(
        self,
        ran: ExecutedModel,
        memory: Memory,
        measured: Measured | None = None,
        samples: Samples | None = None,
        **more: Any,
    ) -> RankRecord:
        """Return the record of this rank's measurements and checks, and write its samples.

        The samples are written to this rank's ``npz`` file. The record holds their digest.
        """
        if measured is not None:
            samples = measured.samples
        losses = [] if samples is None else [v for v in samples.loss.tolist() if not math.isnan(v)]
        grown = None if measured is None else measured.grown
        wire = grown.wire if measured and grown and measured.counted else None
        stepping_s = 0.0 if samples is None else float(samples.marks_s[-1])
        loaded = {
            module for module in sys.modules if module.startswith("torch")
        } - self.known_modules
        # Writing the samples counts as set-up time, so it happens before ``setup_s`` is read.
        digest = "" if samples is None else _write(self.file("npz"), samples)
        return RankRecord(
            rank=self.place.rank,
            local_rank=self.place.local_rank,
            node=self.place.node,
            host=platform.node(),
            pid=os.getpid(),
            device=self.accelerator.name,
            device_uuid=self.accelerator.uuid,
            backend=joining.carrier(self.accelerator.device),
            window_s=0.0 if measured is None else measured.window_s,
            cpu_s=0.0 if grown is None else grown.cpu_s,
            setup_s=self.lap.total_s - stepping_s,
            stepping_s=stepping_s,
            sent_bytes=None if wire is None else wire.sent_bytes,
            resent_bytes=None if wire is None else wire.resent_bytes,
            peak_bytes=memory.peak(),
            first_loss=losses[0] if losses else None,
            last_loss=losses[-1] if losses else None,
            tuned_threads=self.tuned_threads,
            affinity=self.place.cpus,
            modules_after_fork=tuple(sorted(loaded)),
            clock_misses=0 if measured is None else measured.misses,
            ran=ran,
            allocator=memory.allocator(),
            samples_sha256=digest,
            busy_s=None if grown is None else grown.busy_s,
            waited_s=None if grown is None else grown.waited_s,
            throttled_s=None if grown is None else grown.throttled_s,
            kernel_s=None
            if grown is None or measured is None
            else measured.window_s + grown.kernel_s - grown.own_s,
            written_bytes=None if wire is None or grown is None else grown.written_bytes,
            shared=() if wire is None or measured is None else measured.shared,
            phases_s=self.lap.seconds,
            window_ns=None if measured is None else measured.window_ns,
            sources=None if self.place.local_rank else self._sources(),
            logged={} if measured is None else logged.means(measured.window_ns),
            **{"planted_s": None, **more},
        )

    def _sources(self) -> dict[str, str]:
        """Return the digests of the code that this rank ran."""
        task = self.spec.task
        if isinstance(task, Script):
            return sources.of_copy(Path(task.folder))
        return sources.sources(self.spec.files.values())


def set_up(
    spec: LaunchSpec, place: RankPlace, beats: Beats, prepare: Callable[[Path], None]
) -> Rank:
    """Set up the cores, the device and the process group of a rank, and return the rank.

    This returns after all ranks have completed a first collective. ``prepare`` is the function of
    the task that runs before the process group exists. It receives the path of NCCL's log.
    """
    lap = StartupTimes()
    case = spec.case
    folder = Path(spec.out)
    known = frozenset(sys.modules)
    kernel_counters.watch_sockets()
    sources.watch(spec.files.values())
    set_backend(case.environment or {})
    os.sched_setaffinity(0, place.cpus)  # set before any thread exists, because threads inherit it
    threads.precise_sleep()
    torch.set_num_threads(len(place.cpus))
    accelerator = Accelerator(device_of(case, place))
    accelerator.select()
    device = accelerator.device
    prepare(folder / f"rank{place.rank}.nccl")
    kernels.choose(case)
    lap("files")
    beats.write(place.rank, Phase.GROUP)
    if spec.detailed:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    store, earlier = place.store(), threads.running()
    joining.join(spec, store, place.rank, device)
    lap("process group")
    if place.world_size > 1:
        dist.all_reduce(torch.zeros(1, device=device))
        accelerator.synchronize()  # on a device the call has only queued the collective
    meet = Barrier(store, place.rank, place.world_size, case.communicate)
    lap("first collective")
    tuned = threads.tune_loop_thread(earlier) if case.backend == "gloo" else 0
    beats.write(place.rank, Phase.BUILD)
    return Rank(
        spec=spec,
        place=place,
        out=folder,
        accelerator=accelerator,
        meet=meet,
        lap=lap,
        tuned_threads=tuned,
        known_modules=known,
        shared=kernel_counters.uncounted(),
        beats=beats,
    )


def set_backend(environment: Mapping[str, str]) -> None:
    """Set the environment variables that the case states for its communication backend.

    A variable that names a network interface keeps the node's value if it is already set, because
    interfaces have different names on different nodes.
    """
    for name, value in environment.items():
        if names_interface(name):
            os.environ.setdefault(name, value)
        else:
            os.environ[name] = value


def device_of(case: CaseSpec, place: RankPlace) -> torch.device:
    """Return the device of a rank: a separate one, unless the case shares one GPU on purpose."""
    if case.device is Device.CPU:
        return torch.device("cpu")
    index = case.first_device + place.device
    shared = StandIn.SHARED_GPU in case.stand_in
    return numbered(index % torch.accelerator.device_count() if shared else index)


def cpus_of(
    case: CaseSpec, device: int, core: int, near: Sequence[frozenset[int]], agents: int = 1
) -> tuple[int, ...]:
    """Return the CPUs that a rank is pinned to.

    On GPUs they are the CPUs next to the rank's devices (``near`` lists them for each GPU). On CPUs
    they are ``devices_per_rank`` cores, counted from ``core`` on. ``agents`` is the number of
    agents on the node.
    """
    if case.device is Device.CPU:
        allowed = os.sched_getaffinity(0)
        return cores.in_turn(case.first_device + core, case.devices_per_rank, allowed)
    return cores.beside(case.first_device + device, case.devices_per_rank, near, tasks=agents)


def _write(path: Path, samples: Samples) -> str:
    """Write the arrays of the samples to a compressed ``.npz`` file, and return its SHA-256."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, **{name: array for name, array in vars(samples).items() if array is not None}
    )
    raw = buffer.getvalue()
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(raw)
    temporary.replace(path)
    return hashlib.sha256(raw).hexdigest()
