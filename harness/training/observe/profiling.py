"""Profile steps of a window, with torch.profiler on devices or with ``Outline`` on CPUs.

An outline records spans, waits and the peers of sends, but no operators. It therefore hardly slows
ranks on CPUs down.
"""

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    RecordScope,
    _ExperimentalConfig,
)
from torch.autograd.profiler import record_function
from torch.profiler import profile, schedule

from harness.base.documents import to_doc
from harness.cases import Window
from harness.record import Category
from harness.record.spans import label, peer_label
from harness.record.store import write_text
from harness.training.accelerator import Accelerator
from harness.training.observe import spans, threads

_CPU = {ProfilerActivity.CPU}


class Outline:
    """A light profiler of CPU ranks, which records user annotations but no operators.

    It records the steps that ``Window.outlined`` selects. ``step`` must be called after each step.
    """

    def __init__(self, window: Window, rank: int, world_size: int) -> None:
        self._window = window
        self._done = 0
        self._on = False
        self._step: Any = None
        self._quiet = os.open(os.devnull, os.O_WRONLY)
        _follow(lambda: self._on)
        none = (False, False, False, False)
        config = ProfilerConfig(ProfilerState.KINETO, True, *none, _ExperimentalConfig())
        torch.autograd._prepare_profiler(config, _CPU)
        enable: Any = torch.autograd._enable_profiler  # its type stub lacks the scopes
        with self._silenced():
            enable(config, _CPU, {RecordScope.USER_SCOPE})
        backend = dist.get_backend() if dist.is_initialized() else ""
        world = {"backend": backend, "rank": rank, "world_size": world_size}
        torch.autograd._add_metadata_json("distributedInfo", json.dumps(world))
        self._turn(False)

    def step(self) -> None:
        """Note that a step has ended, and switch recording on or off for the next step."""
        self._done += 1
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None
        on = self._window.outlined(self._done)
        first = self._window.steps - self._window.profiled
        if on != self._on:
            self._turn(on)
        if self._done == first:
            spans.forget()
            threads.tell()
        if first <= self._done < self._window.steps:
            self._step = record_function(f"ProfilerStep#{self._done}")
            self._step.__enter__()

    def stop(self) -> None:
        """Stop the profiler, and keep its result."""
        self._turn(False)
        with self._silenced():
            self._result = torch.autograd._disable_profiler()

    def export(self, file: Callable[[str], Path]) -> str:
        """Write the trace and the spans to the files that ``file`` names.

        Return the SHA-256 of the trace.
        """
        trace = file("trace.json.gz")
        self._result.save(str(trace))
        write_text(file("spans.json"), json.dumps(to_doc(tuple(spans.logged()))))
        return hashlib.sha256(trace.read_bytes()).hexdigest()

    def _turn(self, on: bool) -> None:
        """Switch recording on or off."""
        self._on = on
        spans.outline(on)
        with self._silenced():
            torch._C._autograd._toggle_collection_dynamic(on, _CPU)

    @contextlib.contextmanager
    def _silenced(self) -> Iterator[None]:
        """Return a context in which standard error is discarded.

        Kineto prints a line at each start, and torch warns about GPUs at each switch, although no
        GPU is profiled.
        """
        standard_error = os.dup(2)
        os.dup2(self._quiet, 2)
        try:
            yield
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


def _follow(on: Callable[[], bool]) -> None:
    """Patch torch so that waits and the peers of sends appear as ranges while ``on()`` is true.

    The patches stay for the rest of this process.
    """
    waits = label("work", Category.WAIT)
    wait, send, recv = dist.Work.wait, dist.ProcessGroup.send, dist.ProcessGroup.recv
    backward: Callable[..., Any] = Tensor.backward

    def waited(call: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``call`` in a range of the category "wait"."""

        @functools.wraps(call)
        def seen(*args: Any, **more: Any) -> Any:
            if not on():
                return call(*args, **more)
            with record_function(waits):
                return call(*args, **more)

        return seen

    def with_peer(kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """Make ``call`` record an empty range with the number of the peer before it runs."""

        @functools.wraps(call)
        def seen(group: Any, tensors: Any, peer: int, *args: Any, **more: Any) -> Any:
            if on():
                with record_function(peer_label(kind, dist.get_global_rank(group, peer))):
                    pass
            return call(group, tensors, peer, *args, **more)

        return seen

    @functools.wraps(backward)
    def seen_backward(loss: Any, *args: Any, **more: Any) -> Any:
        """Run the backward pass, and record the time for which a reducer waits at its end.

        Reducers such as DDP's wait in a callback after the last gradient. The range begins in a
        callback that is queued before theirs, and ends with the backward pass.
        """
        if not on():
            return backward(loss, *args, **more)
        tail = record_function(label("reducer", Category.WAIT))
        began: list[object] = []

        def begin() -> None:
            began.append(tail.__enter__())

        engine = torch.autograd.Variable._execution_engine
        handle = loss.register_hook(lambda _: engine.queue_callback(begin))
        try:
            return backward(loss, *args, **more)
        finally:
            handle.remove()
            if began:
                tail.__exit__(None, None, None)

    places: tuple[tuple[Any, str, Any], ...] = (
        (dist.Work, "wait", waited(wait)),
        (functional, "wait_tensor", waited(functional.wait_tensor)),  # DTensor waits with this
        (dist.ProcessGroup, "send", with_peer("send", send)),
        (dist.ProcessGroup, "recv", with_peer("recv", recv)),
        (Tensor, "backward", seen_backward),
    )
    for owner, name, call in places:
        setattr(owner, name, call)


#: Number of warm-up steps whose allocations are recorded. The first step allocates the memory that
#: stays in use.
MEMORY_STEPS = 2


class Allocations:
    """A recorder of the device allocations of the first steps, which writes them to a file.

    Recording slows a step down too much for timing, so only warm-up steps are recorded.
    """

    def __init__(self, accelerator: Accelerator, file: Path) -> None:
        self._accelerator = accelerator
        self._file = file
        self._done = 0
        accelerator.follow_memory()

    def step(self) -> None:
        """Note that a step has ended, and write the file after the last recorded step."""
        self._done += 1
        if self._done == MEMORY_STEPS:
            self._accelerator.leave_memory(self._file)


class Profiler:
    """A profiler of the last ``active`` of ``steps`` steps, based on torch.profiler.

    In the step before them, the profiler warms up.
    """

    def __init__(self, steps: int, active: int, accelerator: Accelerator) -> None:
        self._first = steps - active
        self._done = 0
        self._profile = profile(
            activities=accelerator.activities,
            schedule=schedule(wait=self._first - 1, warmup=1, active=active),
            record_shapes=True,
            profile_memory=accelerator.present,
            on_trace_ready=lambda _: spans.profile(False),
        )
        self._profile.start()

    def step(self) -> None:
        """Note that a step has ended, and start recording spans with the first profiled step."""
        self._done += 1
        self._profile.step()
        if self._done == self._first:
            spans.profile(True)
            threads.tell()

    def stop(self) -> None:
        """Stop the profiler."""
        self._profile.stop()

    def export(self, file: Callable[[str], Path]) -> str:
        """Write the trace and the spans to the files that ``file`` names.

        Return the SHA-256 of the trace.
        """
        trace = file("trace.json.gz")
        self._profile.export_chrome_trace(str(trace))
        write_text(file("spans.json"), json.dumps(to_doc(tuple(spans.logged()))))
        return hashlib.sha256(trace.read_bytes()).hexdigest()
