"""What is set for a device, on a host that has none: switches of the process, and nothing else."""

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


def test_no_attention_that_differs_by_bits_runs_where_equal_bits_are_claimed() -> None:
    """cuDNN's backward is not deterministic, and passes torch's check where that only warns."""
    device = Accelerator(torch.device("cuda", 0))
    device.repeatable()
    assert switches() == dict.fromkeys(KERNELS, False)
    assert torch.are_deterministic_algorithms_enabled()
    device.usual()
    assert switches() == dict.fromkeys(KERNELS, True)
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_cpu_is_left_alone() -> None:
    before = switches()
    Accelerator(torch.device("cpu")).repeatable()
    assert switches() == before and not torch.are_deterministic_algorithms_enabled()


def test_a_device_that_was_never_used_has_an_allocator_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: {})
    allocator = Accelerator(torch.device("cuda", 0)).allocator()
    assert allocator is not None and allocator.allocated_bytes == 0
