"""The device of a rank: all calls that depend on the kind of accelerator.

The code uses ``torch.accelerator`` wherever torch offers it. Support for another vendor's device
therefore needs changes in this file only. A CPU has no queue, no allocator and no device clock.
"""

import contextlib
import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from harness.host import vendor
from harness.host.accelerators import Accelerators
from harness.record import Allocator

#: Environment variables that limit which devices a process sees: NVIDIA's, AMD's and Intel's.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


#: ``CUDA_ERROR_NOT_INITIALIZED``: the CUDA driver library returns it until ``cuInit`` is called.
_NOT_INITIALIZED = 3


def driver_started() -> bool:
    """Return whether any code has initialized a GPU driver in this process.

    A forked child of such a process cannot use the GPU. HIP is recognised by the file
    ``/dev/kfd``, which it opens at its start and keeps open.
    """
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == "/dev/kfd":
                return True
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(library.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED)


def survey(build: str) -> Accelerators:
    """Return the devices that torch sees, and the devices for which torch has no kernels.

    ``build`` is the platform that torch was built for. If no vendor's driver reports a device, the
    result lists none, even if torch reports one. On AMD devices ``torch.cuda`` calls HIP.
    """
    gpus = vendor.gpus()
    if not gpus:
        return Accelerators(build=build)
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    if build.startswith("hip"):
        architectures = [device.gcnArchName.partition(":")[0] for device in properties]
        return Accelerators(
            build=build,
            names=tuple(device.name for device in properties),
            foreign=tuple(a for a in architectures if a not in torch.cuda.get_arch_list()),
        )
    uuids = [f"GPU-{device.uuid}" for device in properties]
    built = [arch.partition("_") for arch in torch.cuda.get_arch_list()]
    return Accelerators(
        build=build,
        names=tuple(device.name for device in properties),
        as_nvml=any(gpu.mig for gpu in gpus) or uuids == [gpu.uuid for gpu in gpus],
        foreign=tuple(
            f"{device.name} (sm_{device.major}{device.minor})"
            for device in properties
            if not any(_runs(kind, arch, device.major, device.minor) for kind, _, arch in built)
        ),
    )


def _runs(kind: str, arch: str, major: int, minor: int) -> bool:
    """Return whether kernels built for an architecture run on a GPU.

    ``kind`` and ``arch`` are the two parts of a name such as ``sm_90``, ``sm_90a`` or
    ``compute_90``; ``major`` and ``minor`` are the compute capability of the GPU. Machine code
    (``sm``) runs on the same or a newer minor version of its major version. Intermediate code
    (``compute``) runs on every version that is not older.
    """
    digits = "".join(c for c in arch if c.isdigit())
    built = int(digits[:-1]), int(digits[-1])
    if arch != digits and arch[-1] == "a":  # such code runs on this version only
        return built == (major, minor)
    newer = built <= (major, minor)
    return newer and (kind == "compute" or built[0] == major)


def numbered(index: int) -> torch.device:
    """Return the device with this index, of the kind that this torch was built for."""
    kind = torch.accelerator.current_accelerator()
    return torch.device("cuda" if kind is None else kind.type, index)


class Accelerator:
    """One device of a rank. ``present`` is False if the device is the host's CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.present = device.type != "cpu"

    def select(self) -> None:
        """Make this device the current one of the process, and switch TF32 off.

        A container image may have switched TF32 on. Cases with precision fp32 would then not be
        computed in fp32.
        """
        if not self.present:
            os.environ.update(dict.fromkeys(VISIBLE, ""))  # CPU runs must not use the host's GPUs
            return
        torch.accelerator.set_device_index(self.device)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False

    def repeatable(self) -> None:
        """Request bitwise reproducible results from the libraries that offer them.

        Call this before the device is first used, because cuBLAS reads its setting only once.
        """
        if self.present:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            self._choose_kernels(deterministic=True)

    def usual(self) -> None:
        """Allow the fastest kernels again after ``repeatable``; timed training runs use them."""
        if self.present:
            self._choose_kernels(deterministic=False)

    def _choose_kernels(self, *, deterministic: bool) -> None:
        """Select deterministic kernels, or the fastest ones.

        Gradients of fused attention kernels may differ in their last bits between launches. For
        the cuDNN kernel torch does not even warn about it.
        """
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        for kernel in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(not deterministic)

    @property
    def name(self) -> str:
        """The vendor's name of the device, or ``cpu``."""
        return str(self._module.get_device_name(self.device)) if self.present else "cpu"

    @property
    def uuid(self) -> str:
        """The device's UUID as NVML reports it; empty on a CPU."""
        return f"GPU-{torch.cuda.get_device_properties(self.device).uuid}" if self.present else ""

    def synchronize(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.present:
            torch.accelerator.synchronize(self.device)

    def events(self, count: int) -> list[torch.Event]:
        """Return ``count`` events that the device's clock timestamps; an empty list on a CPU."""
        if not self.present:
            return []
        return [torch.Event(device=self.device, enable_timing=True) for _ in range(count)]

    def forget_peak(self) -> None:
        """Reset the peak of allocated memory.

        Do nothing if the device has not been used yet, because torch would raise an error.
        """
        if torch.accelerator.memory_stats(self.device):
            torch.accelerator.reset_peak_memory_stats(self.device)

    def allocated(self) -> int:
        """Return the number of bytes that tensors occupy now."""
        return int(torch.accelerator.memory_allocated(self.device))

    def peak(self) -> int:
        """Return the largest number of bytes that tensors occupied since ``forget_peak``."""
        return int(torch.accelerator.max_memory_allocated(self.device))

    def allocator(self) -> Allocator | None:
        """Return the peaks of torch's allocator; None on a CPU, where torch keeps no statistics."""
        if not self.present:
            return None
        stats = torch.accelerator.memory_stats(self.device)
        return Allocator(  # the statistics are empty if the device was never used
            allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.peak", 0),
            num_retries=stats.get("num_alloc_retries", 0),
        )

    @property
    def activities(self) -> list[ProfilerActivity]:
        """The activities that a profiler must record to cover this device."""
        names = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
        device = names.get(self.device.type)
        return [ProfilerActivity.CPU, *([device] if device is not None else [])]

    def follow_memory(self) -> None:
        """Start to record every memory allocation and the Python line that made it."""
        if self.present:
            self._module.memory._record_memory_history(
                max_entries=100_000, context="alloc", stacks="python"
            )

    def leave_memory(self, path: Path) -> None:
        """Write the allocations that ``follow_memory`` recorded to ``path``, and stop recording."""
        if self.present:
            self._module.memory._dump_snapshot(str(path))
            self._module.memory._record_memory_history(enabled=None)

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self.device)
