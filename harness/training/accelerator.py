"""A rank's device: every call that is of an accelerator, and none of training, is here.

Written against ``torch.accelerator`` where torch has it, so that another vendor's device needs no
search through the code. A CPU has no queue, no allocator and no clock of its own.
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

#: What says which devices a process may see, by vendor.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")


#: What the driver's library answers before anyone has started it in this process.
_NOT_INITIALIZED = 3


def driver_started() -> bool:
    """Whether a GPU's driver runs in this process, whoever started it: a fork would not survive.

    HIP keeps ``/dev/kfd`` open from its start on.
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
    """The devices that this torch, of that build, sees and has kernels for.

    None without a driver, whatever torch says. On AMD devices torch has HIP under CUDA's names.
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
    """Whether kernels of an architecture (``sm_90``, ``sm_90a``, ``compute_90``) run on a device.

    Machine code runs within its major version, intermediate code on whatever is newer.
    """
    digits = "".join(c for c in arch if c.isdigit())
    built = int(digits[:-1]), int(digits[-1])
    if arch != digits and arch[-1] == "a":  # tuned for that one architecture
        return built == (major, minor)
    newer = built <= (major, minor)
    return newer and (kind == "compute" or built[0] == major)


def numbered(index: int) -> torch.device:
    """The device of this number, of the kind that this torch was built for."""
    kind = torch.accelerator.current_accelerator()
    return torch.device("cuda" if kind is None else kind.type, index)


class Accelerator:
    """One device; ``present`` tells whether it is more than the host's CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.present = device.type != "cpu"

    def select(self) -> None:
        """Make it this process's device; fp32 means fp32 there, whatever an image says of TF32."""
        if not self.present:
            os.environ.update(dict.fromkeys(VISIBLE, ""))  # GPUs of a host play no part in CPU runs
            return
        torch.accelerator.set_device_index(self.device)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False

    def repeatable(self) -> None:
        """Ask for equal bits in every launch, where libraries can; before its first use."""
        if self.present:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            self._choose_kernels(deterministic=True)

    def usual(self) -> None:
        """Allow the fastest kernels again, as trainings are timed, after ``repeatable``."""
        if self.present:
            self._choose_kernels(deterministic=False)

    def _choose_kernels(self, *, deterministic: bool) -> None:
        """Ask for deterministic kernels, or for the fastest.

        The gradients of fused attention kernels may differ in their bits from launch to launch;
        of cuDNN's torch does not even warn.
        """
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        for kernel in ("flash", "mem_efficient", "cudnn"):
            getattr(torch.backends.cuda, f"enable_{kernel}_sdp")(not deterministic)

    @property
    def name(self) -> str:
        """As its vendor calls it; ``cpu``."""
        return str(self._module.get_device_name(self.device)) if self.present else "cpu"

    @property
    def uuid(self) -> str:
        """The identity by which NVML tells it from all others; empty on a CPU."""
        return f"GPU-{torch.cuda.get_device_properties(self.device).uuid}" if self.present else ""

    def synchronize(self) -> None:
        """Wait for all that was queued on it."""
        if self.present:
            torch.accelerator.synchronize(self.device)

    def events(self, count: int) -> list[torch.Event]:
        """Marks on its own clock; none on a CPU."""
        if not self.present:
            return []
        return [torch.Event(device=self.device, enable_timing=True) for _ in range(count)]

    def forget_peak(self) -> None:
        """Count anew; a device that nobody has used has no peak, and torch refuses to ask it."""
        if torch.accelerator.memory_stats(self.device):
            torch.accelerator.reset_peak_memory_stats(self.device)

    def allocated(self) -> int:
        """Bytes in use."""
        return int(torch.accelerator.memory_allocated(self.device))

    def peak(self) -> int:
        """Most bytes in use since ``forget_peak``."""
        return int(torch.accelerator.max_memory_allocated(self.device))

    def allocator(self) -> Allocator | None:
        """Peaks of its allocator; None on a CPU, which has none."""
        if not self.present:
            return None
        stats = torch.accelerator.memory_stats(self.device)
        return Allocator(  # of a device that was never used there is nothing to tell
            allocated_bytes=stats.get("allocated_bytes.all.peak", 0),
            reserved_bytes=stats.get("reserved_bytes.all.peak", 0),
            inactive_split_bytes=stats.get("inactive_split_bytes.all.peak", 0),
            num_retries=stats.get("num_alloc_retries", 0),
        )

    @property
    def activities(self) -> list[ProfilerActivity]:
        """The activities that a profiler records."""
        names = {"cuda": ProfilerActivity.CUDA, "xpu": ProfilerActivity.XPU}
        device = names.get(self.device.type)
        return [ProfilerActivity.CPU, *([device] if device is not None else [])]

    def follow_memory(self) -> None:
        """Note every allocation from here on, with the Python line that made it."""
        if self.present:
            self._module.memory._record_memory_history(
                max_entries=100_000, context="alloc", stacks="python"
            )

    def leave_memory(self, path: Path) -> None:
        """Write down what ``follow_memory`` has noted."""
        if self.present:
            self._module.memory._dump_snapshot(str(path))
            self._module.memory._record_memory_history(enabled=None)

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self.device)
