"""Settings for a device on a host without one change only switches of the process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from harness.training.accelerator import Accelerator

KERNELS = ("flash", "mem_efficient", "cudnn")


def switches() -> dict[str, bool]:
    return {k: getattr(torch.backends.cuda, f"{k}_sdp_enabled")() for k in KERNELS}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before, strict = switches(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(strict)
    for kernel, on in before.items():
        getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(on)


def test_only_deterministic_attention_runs_if_equal_bits_are_claimed() -> None:
    """cuDNN's backward is not deterministic, but torch's check only warns about it."""
    device = Accelerator(torch.device("cuda", 0))
    device.repeatable()
    assert switches() == dict.fromkeys(KERNELS, False)
    assert torch.are_deterministic_algorithms_enabled()
    device.usual()
    assert switches() == dict.fromkeys(KERNELS, True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_settings_for_a_cpu_change_nothing() -> None:
    before = switches()
    Accelerator(torch.device("cpu")).repeatable()
    assert switches() == before and not torch.are_deterministic_algorithms_enabled()


def test_the_allocator_of_an_unused_device_is_empty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: {})
    allocator = Accelerator(torch.device("cuda", 0)).allocator()
    assert allocator is not None and allocator.allocated_bytes == 0
