"""An agent forks ranks: no thread and no driver may have been started in it."""

from __future__ import annotations

import ctypes
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import LaunchError
from harness.training import accelerator
from harness.training.agent import agent


def library(answer: int) -> object:
    """A driver's library that answers so before, or after, somebody has started it."""
    return SimpleNamespace(cuDeviceGetCount=lambda count: answer)


def test_a_driver_is_found_whoever_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda.is_initialized() knows of torch's own start only."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library(3))
    assert not accelerator.driver_started()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library(0))
    assert accelerator.driver_started()
    with pytest.raises(LaunchError, match="cannot fork ranks"):
        agent.stay_forkable()


def test_threads_are_named() -> None:
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
def test_kernels_run_on_what_they_were_built_for(
    built: str, device: tuple[int, int], runs: bool
) -> None:
    kind, _, arch = built.partition("_")
    assert accelerator._runs(kind, arch, *device) is runs


def test_the_compiler_is_imported_once_unless_a_thread_comes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU's machine what Inductor imports may load NVML, which starts a thread."""
    (tmp_path / "quiet_compiler.py").write_text("")
    (tmp_path / "noisy_compiler.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = threading.active_count()  # the tests' own process may have some
    monkeypatch.setattr(
        agent, "not_forkable", lambda: "threads" * (threading.active_count() > before)
    )
    for name, imported in (("quiet_compiler", True), ("noisy_compiler", False)):
        monkeypatch.setattr(agent, "COMPILER", name)
        agent.preload_compiler()
        assert (name in sys.modules) is imported, name
