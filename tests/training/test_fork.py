"""An agent that forks ranks must have started neither threads nor a driver."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import LaunchError
from harness.training import accelerator
from harness.training.agent import agent


def library(answer: int) -> object:
    """Return a fake driver library with this answer, before or after the driver's start."""
    return SimpleNamespace(cuDeviceGetCount=lambda count: answer)


def test_a_started_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.is_initialized() is true only if torch itself started the driver."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library(3))
    assert not accelerator.driver_started()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library(0))
    assert accelerator.driver_started()
    with pytest.raises(LaunchError, match="cannot fork ranks"):
        agent.stay_forkable()


def test_threads_are_named_in_the_error() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        with pytest.raises(LaunchError, match="the agent has started threads"):
            agent.stay_forkable()
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    ("built", "device", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_90", (10, 0), False),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("compute_90", (12, 0), True),
    ],
)
def test_kernels_run_on_compatible_architectures(
    built: str, device: tuple[int, int], runs: bool
) -> None:
    kind, _, arch = built.partition("_")
    assert accelerator._runs(kind, arch, *device) is runs


def test_the_compiler_is_imported_unless_it_starts_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with GPUs, Inductor's imports may load NVML, which starts a thread."""
    (tmp_path / "quiet_compiler.py").write_text("")
    (tmp_path / "noisy_compiler.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = threading.active_count()  # the test process may have other threads
    monkeypatch.setattr(
        agent, "not_forkable", lambda: "threads" * (threading.active_count() > before)
    )
    for name, imported in (("quiet_compiler", True), ("noisy_compiler", False)):
        monkeypatch.setattr(agent, "COMPILER", name)
        agent.preload_compiler()
        assert (name in sys.modules) is imported, name


INJECTED = """
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>
static void *serve(void *unused) { for (;;) pause(); return unused; }
__attribute__((constructor)) static void inject(void) {
    pthread_t thread;
    pthread_create(&thread, 0, serve, 0);
    pthread_setname_np(thread, "[Tool]");
}
"""


def test_threads_of_an_injected_tool_are_ignored(
    tmp_path: Path,
) -> None:
    """Nsight Systems starts threads in every process before ``main``, and survives its forks."""
    source = tmp_path / "tool.c"
    source.write_text(INJECTED)
    tool = tmp_path / "tool.so"
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", tool, source], check=True)
    code = (
        "import threading; from harness.training.agent import INJECTED, agent\n"
        "assert INJECTED\n"
        "agent.stay_forkable()\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print(agent.not_forkable())"
    )
    alone = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # numpy starts no threads
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **alone, "LD_PRELOAD": str(tool)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "threads " in done.stdout and "[Tool]" not in done.stdout


@pytest.mark.skipif(shutil.which("nsys") is None, reason="no nsys here")
def test_a_run_under_nsys_has_the_spans_of_ranks_in_its_report(tmp_path: Path) -> None:
    words = ["run", "ddp/mlp-nano/weak", "--cpus", "2", "--nsys", "--time-budget", "60s"]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words, "--results", str(tmp_path / "out")],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "cannot fork ranks" not in done.stdout + done.stderr
    assert "launches in" in done.stdout, done.stdout + done.stderr
    (report,) = [path for path in (tmp_path / "out").glob("scaleproof-*") if path.is_file()]
    assert b"forward" in report.read_bytes() or report.suffix == ".nsys-rep"
