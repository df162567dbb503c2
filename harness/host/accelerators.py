"""Accelerators: what torch can use here, and whether that is what NVML sees.

Asking torch starts a driver, so a process of its own is asked, and only where NVML sees a GPU.
"""

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.host.machine import Machine

ROCM_WHEEL = "pip install torch --index-url https://download.pytorch.org/whl/rocm6.4"
CUDA_WHEEL = "pip install torch --index-url https://download.pytorch.org/whl/cu130"


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """The devices that torch sees, by name and in its order; ``as_nvml`` if that is NVML's, too.

    ``build`` is what torch was built for (``cuda 13.0``, ``hip 6.4``, ``cpu``). ``foreign`` are
    devices that it has no kernels for. ``error`` is what kept torch from answering.
    """

    build: str
    names: tuple[str, ...] = ()
    as_nvml: bool = True
    foreign: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Misfit:
    """Why ranks cannot run on GPUs here, in the words of an error."""

    what: str
    expected: str
    fix: str


@cache
def torch_build() -> str:
    """The platform that the installed torch was built for; its version file is read, torch is not
    imported.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return "none"
    lines = ast.parse((Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")).body
    stated = {
        line.target.id: str(line.value.value or "")
        for line in lines
        if isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and isinstance(line.value, ast.Constant)
    }
    built = (f"{kind} {stated[kind]}" for kind in ("cuda", "hip", "xpu") if stated.get(kind))
    return next(built, "cpu")


def no_gpu(build: str, version: str, vendor: str = "NVIDIA") -> Misfit | None:
    """Why a torch of this build runs on no GPU of this vendor, if so."""
    kind, _, number = build.partition(" ")
    wanted = {"NVIDIA": "cuda", "AMD": "hip"}[vendor]
    if kind == wanted:
        return None
    wheel = CUDA_WHEEL if wanted == "cuda" else ROCM_WHEEL
    expected = f"a {'CUDA' if wanted == 'cuda' else 'ROCm'} build of torch"
    if kind == "xpu":
        what = f"torch {version} is built for Intel GPUs ({number})"
        return Misfit(what, f"{expected}: other GPUs are not supported", "--cpus 2")
    if kind == "hip":
        return Misfit(f"torch {version} is built for ROCm {number}", expected, wheel)
    if kind == "cuda":
        return Misfit(f"torch {version} is built for CUDA {number}", expected, wheel)
    platform = "CUDA" if wanted == "cuda" else "ROCm"
    return Misfit(f"torch {version} is built without {platform}", expected, f"{wheel}, or --cpus")


#: What the driver's kernel module puts there, in containers too.
_DRIVER = Path("/dev/nvidiactl")


def hidden(build: str, version: str, driver: Path = _DRIVER) -> Misfit | None:
    """Why NVML shows no GPU on a machine that has some, as far as that can be told."""
    if build.startswith("xpu"):
        return no_gpu(build, version)
    if build.startswith("hip"):
        return Misfit(
            "ROCm's driver shows no GPU (/sys/class/kfd)",
            "the kernel module amdgpu, and its devices in the container",
            "docker run --device /dev/kfd --device /dev/dri ...",
        )
    if driver.exists():
        return Misfit(
            f"a driver is there ({driver}), but its library libnvidia-ml.so.1 does not answer",
            "NVML, which tells names, memory and clocks",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        )
    return None


def misfit(seen: Accelerators, machine: Machine, version: str, wanted: int) -> Misfit | None:
    """Why ``wanted`` ranks cannot have a GPU each on this machine, if so."""
    look = "nvidia-smi -L"
    maker = "AMD" if (machine.gpu or "").startswith("AMD") else "NVIDIA"
    if (built := no_gpu(seen.build, version, maker)) is not None:
        return built
    if seen.error:
        expected = f"a driver for {seen.build}"
        return Misfit(f"torch cannot use the GPUs: {seen.error}", expected, "nvidia-smi")
    if machine.mig and wanted > 1:
        expected = "whole GPUs: NCCL takes one slice of a GPU at most"
        return Misfit("its GPUs are cut into MIG slices", expected, "--gpus 1")
    if len(seen.names) < wanted:
        expected = "enough GPUs in CUDA_VISIBLE_DEVICES, and nodes in the order of --nodes"
        message = (
            f"NVML sees {machine.num_gpus} GPUs, torch {len(seen.names)}, but {wanted} are needed"
        )
        return Misfit(message, expected, look)
    if not seen.as_nvml:
        expected = "one order, or clocks and cores are those of other GPUs"
        return Misfit(
            "torch numbers the GPUs unlike NVML", expected, "export CUDA_DEVICE_ORDER=PCI_BUS_ID"
        )
    if seen.foreign:
        message = f"torch {version} has no kernels for {', '.join(seen.foreign)}"
        return Misfit(message, "a torch that was built for it", CUDA_WHEEL)
    return None
