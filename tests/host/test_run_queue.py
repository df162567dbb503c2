"""The kernel's count of time spent waiting for a core, tested with processes that share one."""

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


def test_two_processes_on_one_core_wait_for_each_other() -> None:
    """While both compute, each waits for as long as the other runs."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        with subprocess.Popen([sys.executable, "-c", BURN], stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            other.stdout.readline()  # it has started on the same core, which it inherited
            waited_s = _worked(0.5)
            other.kill()
    finally:
        os.sched_setaffinity(0, cores)
    assert waited_s is not None and waited_s > 0.25


def test_the_waiting_time_of_ended_threads_is_unknown() -> None:
    before, began = run_queue.read(), time.process_time()
    busy = threading.Thread(target=sum, args=(range(10_000_000),))
    busy.start()
    busy.join()
    while Path(f"/proc/self/task/{busy.native_id}").exists():
        pass  # until the kernel has removed the thread
    cpu_s = time.process_time() - began
    assert run_queue.waited(before, run_queue.read(), cpu_s) is None


def test_without_the_kernels_count_waiting_is_unknown() -> None:
    assert run_queue.waited(None, run_queue.read(), 1.0) is None


def test_a_window_has_the_waiting_time_of_its_threads() -> None:
    """The meter of every launch records the waiting time of a rank."""
    meter = Meter(time.perf_counter)
    meter.start()
    _worked(0.2)
    meter.stop()
    grown = meter.grown()
    assert grown.waited_s is not None and 0.0 <= grown.waited_s < 60.0
