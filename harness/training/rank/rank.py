"""What one rank does in one launch, from process group to result files. Any engine starts this."""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import hashlib
import io
import json
import math
import os
import platform
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from harness.base.documents import to_doc
from harness.launch.wire.beats import Beats, Phase
from harness.launch.wire.messages import LaunchSpec, RankError, Restart
from harness.record import Purpose, RankRecord
from harness.record.recovery import RankRestart
from harness.record.store import write_text
from harness.spec import CaseSpec, Device, Window
from harness.training.context import Loaded, RankContext, Trainer, build_model, load
from harness.training.describe import case_batching
from harness.training.observe import flight, issued, threads
from harness.training.observe.clock import Clock
from harness.training.observe.memory import Memory
from harness.training.observe.profiler import Profiler
from harness.training.rank import gate, transport
from harness.training.rank.barrier import Meeting
from harness.training.rank.feed import make_feed
from harness.training.rank.restart import train
from harness.training.rank.sweep import sweep
from harness.training.rank.timed import Timed, measure

#: Texts by which a rank only reports that another one is gone, in any case.
PEER_ERRORS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "failed to connect",
    "connection was likely closed",
    "recvValue failed",
    "remote process exited",
    "Connection was closed",
    "Application timeout caused pair closure",
    "Read timeout",
    "wait timeout after",
    "Watchdog caught collective operation timeout",
    "communicator was aborted",
    "ncclRemoteError",
)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a rank is. ``device`` is its number among the devices that its agent sees; ``store``
    makes the rendezvous store after the process was set up.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node: int
    device: int
    parent: int
    store: Callable[[], dist.Store]


class Laps:
    """Where a rank's time goes before its first step, in s by phase."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def __call__(self, phase: str) -> None:
        """The phase that ends now."""
        now = time.monotonic()
        self.seconds[phase], self._last = now - self._last, now

    @property
    def total_s(self) -> float:
        """Since the rank began."""
        return time.monotonic() - self._began


def run_rank(spec: LaunchSpec, place: Place, beats: Beats) -> int:
    """Do the launch; the exit code: 0 with a result file left behind, 1 with an error file."""
    out = Path(spec.out)
    if place.parent:
        threads.die_with_parent(place.parent)
    log = os.open(out / f"rank{place.rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.enable()
    stack_file, log_file = out / f"rank{place.rank}.stack", out / f"rank{place.rank}.log"
    flight_file, backend = out / f"rank{place.rank}.flight.json", spec.case.backend
    with stack_file.open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack, all_threads=True)
        flight.dump_when_asked(flight_file, backend)
        try:
            _work(spec, place, beats, out)
        except BaseException as error:
            text = traceback.format_exc()
            message = str(error) or type(error).__name__
            peer = any(t.lower() in message.lower() for t in PEER_ERRORS)
            failure = RankError(
                type=type(error).__name__, message=message, traceback=text, peer=peer
            )
            write_text(out / f"rank{place.rank}.error.json", json.dumps(to_doc(failure)))
            flight.dump(flight_file, backend)
            sys.stderr.write(text)
            return 1
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    stack_file.unlink()
    if log_file.stat().st_size == 0:
        log_file.unlink()
    return 0


def set_backend(environment: Mapping[str, str]) -> None:
    """What a case says of its backend holds wherever its ranks run.

    But for names of interfaces, where a node knows better.
    """
    for name, value in environment.items():
        if name.endswith("_IFNAME"):
            os.environ.setdefault(name, value)
        else:
            os.environ[name] = value


def _work(spec: LaunchSpec, place: Place, beats: Beats, out: Path) -> None:
    lap = Laps()
    before = set(sys.modules)
    case, is_gate = spec.case, spec.purpose is Purpose.GATE
    set_backend(case.environment or {})
    # By rank, not local rank, on CPU: nodes emulated on one machine must not share a core.
    index = place.rank if case.device is Device.CPU else place.local_rank
    first = case.first_device + index * case.devices_per_rank
    affinity = threads.pin(str(case.device), first, place.local_world_size, case.devices_per_rank)
    threads.precise_sleep()
    torch.set_num_threads(len(affinity))
    device = _device(case, place)
    if device.type == "cuda":
        torch.backends.cudnn.allow_tf32 = False  # fp32 means fp32, in matmuls and convolutions
    issued.enable(issued.COUNTED if is_gate else issued.LAST)
    if is_gate and device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
    sweeping = spec.purpose is Purpose.FABRIC
    loaded = None if sweeping else load(spec.files)
    lap("files")
    beats.write(place.rank, Phase.GROUP)
    seconds = spec.deadlines.collective_s
    if spec.detailed:
        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
        dist.set_debug_level_from_env()
    nccl_log = out / f"rank{place.rank}.nccl"
    if sweeping:
        transport.listen(case.backend, nccl_log)
    store, earlier = place.store(), threads.running()
    dist.init_process_group(
        case.backend if case.communicate else "fake",
        store=store,
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=seconds),
        device_id=device if case.backend == "nccl" and case.communicate else None,
    )
    lap("process group")
    if place.world_size > 1:
        dist.all_reduce(torch.zeros(1, device=device))
    meet = Meeting(store, place.rank, place.world_size, case.communicate)
    lap("first collective")
    tune = spec.tune_loop_thread and case.backend == "gloo"
    tuned = threads.tune_loop_thread(earlier) if tune else 0
    beats.write(place.rank, Phase.BUILD)
    if loaded is None:
        alive = lambda: beats.write(place.rank, Phase.GATE)  # noqa: E731
        rows = sweep(case, place.rank, device, spec.only, alive, nccl_log)
        write_text(out / f"rank{place.rank}.json", json.dumps(to_doc(tuple(rows))))
        meet.part()
        beats.write(place.rank, Phase.DONE)
        return
    memory = Memory(device)

    def context(of: CaseSpec) -> RankContext:
        return RankContext(
            case=of,
            rank=place.rank,
            world_size=place.world_size,
            device=device,
            batching=case_batching(loaded, of),
            loss=loaded.model.loss,
            compressor=loaded.compressor,
        )

    if spec.restart is not None:
        found = _restart(spec, spec.restart, loaded, context(case), beats, lap)
        write_text(out / f"rank{place.rank}.json", json.dumps(to_doc(found)))
        meet.part()
        beats.write(place.rank, Phase.DONE)
        return
    result: dict[str, Any] = dict(planted_s=None)
    timed: Timed | None = None
    trainer: Trainer
    if is_gate:
        beats.write(place.rank, Phase.GATE)
        checks, counted, trainer = gate.run_gate(
            loaded, spec.twin, context, lambda: beats.write(place.rank, Phase.GATE)
        )
        more, norm = gate.full_size(loaded, case, context(case))
        result |= dict(checks=(*checks, *more), issued=counted, grad_norm=norm)
    else:
        ctx = context(case)
        timed, trainer, result = _timed(spec, loaded, ctx, beats, memory, lap, meet)
    arrays = None if timed is None else timed.samples
    digest = _write_samples(out / f"rank{place.rank}.npz", arrays)
    finite = [] if arrays is None else [v for v in arrays.loss.tolist() if not math.isnan(v)]
    wire = None if timed is None else timed.wire
    stepping_s = 0.0 if arrays is None else float(arrays.marks_s[-1])
    record = RankRecord(
        rank=dist.get_rank(),
        local_rank=place.local_rank,
        node=place.node,
        host=platform.node(),
        pid=os.getpid(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        backend=dist.get_backend(),
        window_s=0.0 if timed is None else timed.window_s,
        cpu_s=0.0 if timed is None else timed.cpu_s,
        setup_s=lap.total_s - stepping_s,
        stepping_s=stepping_s,
        sent_bytes=None if wire is None else wire.sent_bytes,
        resent_bytes=None if wire is None else wire.resent_bytes,
        peak_bytes=memory.peak(),
        first_loss=finite[0] if finite else None,
        last_loss=finite[-1] if finite else None,
        tuned_threads=tuned,
        affinity=affinity,
        modules_after_fork=tuple(
            sorted(m for m in set(sys.modules) - before if m.startswith("torch"))
        ),
        clock_misses=0 if timed is None else timed.misses,
        ran=trainer.ran(),
        allocator=memory.allocator(),
        samples_sha256=digest,
        busy_s=None if timed is None else timed.busy_s,
        phases_s=lap.seconds,
        **result,
    )
    write_text(out / f"rank{place.rank}.json", json.dumps(to_doc(record)))
    meet.part()
    beats.write(place.rank, Phase.DONE)


def _restart(
    spec: LaunchSpec, plan: Restart, loaded: Loaded, ctx: RankContext, beats: Beats, lap: Laps
) -> RankRestart:
    """Build as for a timed launch, then train with a checkpoint."""
    with ctx.device:
        model = build_model(loaded, ctx.case, ctx.case.seed)
    trainer = loaded.strategy.build(model, ctx)
    feed = make_feed(loaded, ctx, spec.steps)
    lap("model")

    def beat(phase: Phase, step: int) -> None:
        beats.write(ctx.rank, phase, step)

    return train(spec, plan, trainer, feed, ctx.rank, beat, lap.seconds)


def _device(case: CaseSpec, place: Place) -> torch.device:
    """One device per rank, but for a GPU shared on purpose."""
    if case.device is Device.CPU:
        return torch.device("cpu")
    index = case.first_device + place.device * case.devices_per_rank
    device = torch.device(
        "cuda", index % torch.cuda.device_count() if "shared_gpu" in case.stand_in else index
    )
    torch.cuda.set_device(device)
    return device


def _timed(
    spec: LaunchSpec,
    loaded: Loaded,
    ctx: RankContext,
    beats: Beats,
    memory: Memory,
    lap: Laps,
    meet: Callable[[], None],
) -> tuple[Timed, Trainer, dict[str, Any]]:
    """Build, prepare the batches, measure; and what else a rank's record holds of it."""
    case = ctx.case
    with ctx.device:
        model = build_model(loaded, case, case.seed)
    trainer = loaded.strategy.build(model, ctx)
    lap("model")
    feed = make_feed(loaded, ctx, spec.steps)
    period = getattr(loaded.model, "period_s", None)
    period_s = None if period is None else period(loaded.size(case), case, spec.draw)
    window = Window(steps=spec.steps, cut=spec.cut, profiled=spec.profiled)
    lap("data")
    profiler = clock = None
    if spec.profiled:
        profiler, clock = Profiler(spec.steps, spec.profiled, ctx.device), Clock()
        clock.handshake()
    timed = measure(
        trainer,
        feed,
        window,
        ctx=ctx,
        memory=memory,
        beat=lambda phase, step: beats.write(ctx.rank, phase, step),
        meet=meet,
        period_s=period_s,
        profiler=profiler,
    )
    more: dict[str, Any] = dict(planted_s=period_s)
    if profiler is not None and clock is not None:
        profiler.stop()
        clock.handshake()
        more["trace_sha256"] = profiler.export(Path(spec.out), ctx.rank)
        more |= dict(clock_offset_ns=clock.offset_ns, clock_half_ns=clock.half_width_ns)
    return timed, trainer, more


def _write_samples(path: Path, samples: Any) -> str:
    """Write the arrays; their sha256, empty without samples."""
    if samples is None:
        return ""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, **{f.name: getattr(samples, f.name) for f in dataclasses.fields(samples)}
    )
    raw = buffer.getvalue()
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(raw)
    temporary.replace(path)
    return hashlib.sha256(raw).hexdigest()


def leave(code: int) -> None:
    """End this rank at once: torch's teardown costs a third of a second and measures nothing."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
