"""The kernel's count of waiting for a core, against a process that really has to share one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from harness.host import cores as run_queue
from harness.training.observe.kernel_counters import Meter

BURN = "print(flush=True)\nwhile True: pass"


def _worked(seconds: float) -> float | None:
    before, began = run_queue.read(), time.process_time()
    while time.process_time() - began < seconds:
        pass
    return run_queue.waited(before, run_queue.read(), time.process_time() - began)


def test_two_on_one_core_wait_for_each_other() -> None:
    """As long as both compute, each waits for as long as the other runs."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()  # it has begun, on the same core: that is inherited
            waited_s = _worked(0.5)
            other.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert waited_s is not None and waited_s > 0.25


def test_what_threads_waited_that_are_gone_is_not_known() -> None:
    before, began = run_queue.read(), time.process_time()
    busy = threading.Thread(target=sum, args=(range(10_000_000),))
    busy.start()
    busy.join()
    while Path(f"/proc/self/task/{busy.native_id}").exists():
        pass  # the kernel takes a moment to end it
    cpu_s = time.process_time() - began
    assert run_queue.waited(before, run_queue.read(), cpu_s) is None


def test_where_the_kernel_does_not_count_nothing_is_known() -> None:
    assert run_queue.waited(None, run_queue.read(), 1.0) is None


def test_a_window_knows_what_its_threads_waited() -> None:
    """Of a rank, by the meter that every launch reads."""
    meter = Meter(time.perf_counter)
    meter.start()
    _worked(0.2)
    meter.stop()
    grown = meter.grown()
    assert grown.waited_s is not None and 0.0 <= grown.waited_s < 60.0
