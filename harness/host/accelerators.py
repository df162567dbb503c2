"""Compare the GPUs that torch can use on this machine with those that NVML reports.

A query through torch initialises the driver. Therefore the query runs in a separate process, and
only if NVML reports a GPU.
"""

import ast
import importlib.util
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from harness.host.machine import Machine

#: Commands that install a build of torch for AMD and for NVIDIA GPUs.
ROCM_WHEEL = "pip install torch --index-url https://download.pytorch.org/whl/rocm6.4"
CUDA_WHEEL = "pip install torch --index-url https://download.pytorch.org/whl/cu130"


@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """The GPUs that torch can use.

    ``build`` is the platform for which torch was built (``cuda 13.0``, ``hip 6.4``, ``cpu``).
    ``names`` lists the names of the devices in torch's order, and ``as_nvml`` says whether NVML has
    the same order. ``foreign`` lists devices for which torch has no kernels. ``error`` is the error
    that prevented torch from listing the devices; it is empty if there was none.
    """

    build: str
    names: tuple[str, ...] = ()
    as_nvml: bool = True
    foreign: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Misfit:
    """The reason why ranks cannot run on the GPUs of this machine, as the parts of an error."""

    what: str
    expected: str
    fix: str


@cache
def torch_build() -> str:
    """Return the platform for which the installed torch was built, without importing torch.

    The platform is read from torch's version file: ``cuda 13.0``, ``hip 6.4``, ``xpu ..``, ``cpu``,
    or ``none`` if torch is not installed.
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
    """Return why a torch of this build cannot use GPUs of this vendor, or None if it can."""
    kind, _, number = build.partition(" ")
    wanted = {"NVIDIA": "cuda", "AMD": "hip"}[vendor]
    if kind == wanted:
        return None
    wheel = CUDA_WHEEL if wanted == "cuda" else ROCM_WHEEL
    expected = f"a {'CUDA' if wanted == 'cuda' else 'ROCm'} build of torch"
    if kind == "xpu":
        what = f"torch {version} is built for Intel GPUs ({number})"
        return Misfit(
            what, f"{expected}, because GPUs of other vendors are not supported", "--cpus 2"
        )
    if kind == "hip":
        return Misfit(f"torch {version} is built for ROCm {number}", expected, wheel)
    if kind == "cuda":
        return Misfit(f"torch {version} is built for CUDA {number}", expected, wheel)
    platform = "CUDA" if wanted == "cuda" else "ROCm"
    return Misfit(f"torch {version} is built without {platform}", expected, f"{wheel}, or --cpus")


#: A file that exists if NVIDIA's kernel module is loaded. It exists in containers, too.
_DRIVER = Path("/dev/nvidiactl")


def hidden(build: str, version: str, driver: Path = _DRIVER) -> Misfit | None:
    """Return a likely reason why GPUs of this machine are not visible, or None."""
    if build.startswith("xpu"):
        return no_gpu(build, version)
    if build.startswith("hip"):
        return Misfit(
            "ROCm's driver shows no GPU (/sys/class/kfd)",
            "a loaded kernel module amdgpu, and access to its devices inside the container",
            "docker run --device /dev/kfd --device /dev/dri ...",
        )
    if driver.exists():
        return Misfit(
            f"a driver is loaded ({driver}), but its library libnvidia-ml.so.1 does not answer",
            "a working NVML library, which reports names, memory and clocks of GPUs",
            "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility ...",
        )
    return None


def misfit(seen: Accelerators, machine: Machine, version: str, wanted: int) -> Misfit | None:
    """Return the reason why ``wanted`` ranks cannot each have a GPU here, or None if they can."""
    look = "nvidia-smi -L"
    maker = "AMD" if (machine.gpu or "").startswith("AMD") else "NVIDIA"
    if (built := no_gpu(seen.build, version, maker)) is not None:
        return built
    if seen.error:
        expected = f"a driver for {seen.build}"
        return Misfit(f"torch cannot use the GPUs: {seen.error}", expected, "nvidia-smi")
    if machine.mig and wanted > 1:
        expected = "GPUs that are not divided, because NCCL can use at most one slice of a GPU"
        return Misfit("the GPUs of this machine are divided into MIG slices", expected, "--gpus 1")
    if len(seen.names) < wanted:
        expected = (
            "enough GPUs in CUDA_VISIBLE_DEVICES on each node, and a list of nodes whose order"
            " is the order of the GPU counts in --nodes"
        )
        message = (
            f"NVML sees {machine.num_gpus} GPUs, torch {len(seen.names)}, but {wanted} are needed"
        )
        return Misfit(message, expected, look)
    if not seen.as_nvml:
        expected = "GPUs in the order of NVML, because clocks and cores are assigned to ranks in it"
        return Misfit(
            "torch and NVML number the GPUs in different orders",
            expected,
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
    if seen.foreign:
        message = f"torch {version} has no kernels for {', '.join(seen.foreign)}"
        return Misfit(message, "a build of torch for these GPUs", CUDA_WHEEL)
    return None
