"""Describe this machine: its hardware class, its facts and its software."""

import hashlib
import json
import os
import platform
import re
import resource
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path

from harness.base.documents import fields_of
from harness.host import cores as cgroup, environment, fabric, topology, vendor
from harness.host.fabric import RDMA, MachineFabric

#: Clock sources that can be read without a system call and give the same time on all cores.
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "ptp_kvm")


def facts() -> dict[str, str]:
    """Return the facts that can be read without root, torch or a CUDA context, by their names."""
    return {name: text for name, text in _facts() if text}


def _facts() -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every fact; the text is empty if the fact is unknown."""
    machine_here = detect()
    for name, value in fields_of(machine_here).items():
        yield f"hardware: {name}", "" if value is None else str(value)
    yield from topology.facts()
    if kinds := Counter(pair.joined for pair in vendor.topology() if pair.joined):
        yield "topology: between gpus", ", ".join(f"{n}x {kind}" for kind, n in kinds.most_common())
    yield "topology: gpus by numa node", _gpu_nodes()
    for name, text in _interfaces():
        yield f"network: {name}", text
    for name, text in software().items():
        yield f"version: {name}", text
    yield "version: container image", _image()
    yield from _limits()
    yield "clock: source", _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    yield "clock: governor", _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    for gpu in vendor.gpus():
        clock, watts = gpu.max_clock_mhz, gpu.power_limit_w
        clocks = [f"{clock} MHz"] if clock else []
        yield f"clock: gpu {gpu.index}", ", ".join([*clocks, *([f"{watts} W"] if watts else [])])
    for name, text in environment.of_backends().items():
        if not environment.names_interface(name):  # interfaces may differ between nodes
            yield f"environment: {name}", text


def _read(path: str) -> str:
    """Return the content of a file, or "" if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _image() -> str:
    """Return the container image, from SCALEPROOF_IMAGE (set by a site) or from podman."""
    if image := os.environ.get("SCALEPROOF_IMAGE"):
        return image
    lines = dict(line.partition("=")[::2] for line in _read("/run/.containerenv").splitlines())
    return lines.get("imageid", "").strip('"')


def _gpu_nodes() -> str:
    """Return the NUMA node of each GPU as one text."""
    near = {
        gpu.index: _read(f"/sys/bus/pci/devices/{gpu.bus_id[-12:].lower()}/numa_node")
        for gpu in vendor.gpus()
        if gpu.bus_id
    }
    return ", ".join(f"{i}: {node}" for i, node in near.items() if node)


def _interfaces() -> Iterator[tuple[str, str]]:
    """Yield the names and facts of physical network cards and of InfiniBand ports."""
    for card in sorted(Path("/sys/class/net").glob("*")):
        if (card / "device").exists():
            speed = _read(f"{card}/speed")
            rate = f"{speed} Mbit/s" if speed.isdigit() else ""
            words = (_read(f"{card}/operstate"), rate, f"mtu {_read(f'{card}/mtu')}")
            yield card.name, ", ".join(filter(None, words))
    for port in sorted(Path("/sys/class/infiniband").glob("*/ports/*")):
        state, rate = (_read(f"{port}/{name}") for name in ("state", "rate"))
        yield f"{port.parts[-3]} port {port.name}", ", ".join(filter(None, (state, rate)))


def _limits() -> Iterator[tuple[str, str]]:
    """Yield the limits of this process: memory, files, processes and CPUs."""
    for name, which in (
        ("locked memory", resource.RLIMIT_MEMLOCK),
        ("open files", resource.RLIMIT_NOFILE),
        ("processes", resource.RLIMIT_NPROC),
    ):
        soft, _ = resource.getrlimit(which)
        yield f"limit: {name}", "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    try:
        yield "limit: shared memory", f"{shutil.disk_usage('/dev/shm').total >> 20} MiB"
    except OSError:
        yield "limit: shared memory", "none"
    yield "limit: cpus", str(len(os.sched_getaffinity(0)))


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The hardware of a machine.

    ``key`` is a hash of the facts that do not change if the machine is rebooted or renamed.
    ``fabric`` is None for machines without a GPU, and in records of older versions.
    """

    cpu: str
    num_cores: int
    memory_gib: int
    gpu: str | None
    num_gpus: int
    gpu_memory_gib: int | None
    host: str
    kernel: str
    driver: str | None
    mig: bool = False
    power_limit_w: int | None = None
    infiniband: bool = False
    fabric: MachineFabric | None = None

    @cached_property
    def hardware_class(self) -> str:
        """The GPUs or CPU, with the ``key``: ``8x-nvidia-h200-3f1c``, ``2core-amd-epyc-91ab``."""
        name = f"{self.num_gpus}x {self.gpu}" if self.gpu else f"{self.num_cores}core {self.cpu}"
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]
        return f"{slug}-{self.key}"

    @cached_property
    def key(self) -> str:
        """A hash of the devices, their memory, the CPU and the kinds of links, as 4 hex digits."""
        facts = [self.cpu, self.num_cores, self.gpu, self.num_gpus, self.gpu_memory_gib, self.mig]
        facts += [self.fabric.kinds] if self.fabric is not None else []
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:4]

    @cached_property
    def title(self) -> str:
        """The GPUs with their links, and the CPU, as a text for screens."""
        cpu = f"{self.num_cores} cores of {self.cpu}"
        if not self.gpu:
            return cpu
        several = self.num_gpus > 1 and self.fabric is not None
        link = f" ({self.joined(1)})" if several else ""
        return f"{self.num_gpus}x {self.gpu}{link} · {cpu}"

    def joined(self, num_nodes: int) -> str:
        """Return the name of the connection between ranks on ``num_nodes`` nodes: ``nvswitch``.

        The name is ``unknown`` in records of older versions.
        """
        return fabric.between(self.fabric, num_nodes)

    @property
    def network_gbit_s(self) -> float:
        """The rate of the network for each GPU in Gbit/s; 0 if it is unknown."""
        return self.fabric.network_gbit_s / max(1, self.num_gpus) if self.fabric else 0.0


def physical_cores() -> int:
    """Return the number of physical cores that affinity and CPU quota allow this process."""
    quota = cgroup.quota_cpus()
    return _cores() if quota is None else max(1, min(_cores(), int(quota)))


def _cores() -> int:
    """Return the number of physical cores of the allowed CPUs.

    If /sys does not report the cores, every CPU counts as one.
    """
    allowed = os.sched_getaffinity(0)
    cores = set()
    for cpu in allowed:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            ids = [
                (topology / f).read_text(encoding="utf-8").strip()
                for f in ("physical_package_id", "core_id")
            ]
        except OSError:
            return len(allowed)
        cores.add(tuple(ids))
    return len(cores)


def busy_s(cpus: Collection[int]) -> float | None:
    """Return for how many seconds since boot these CPUs were busy.

    Time that a hypervisor took away counts as busy. The time of interrupts is left out, because the
    network traffic of the measured program causes interrupts. Return None if /proc does not report
    the times.
    """
    names = {f"cpu{i}" for i in cpus}
    total, num_seen = 0, 0
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        name, *fields = line.split()
        if name in names and len(fields) >= 8:
            user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, fields[:8])
            total = total + user + nice + system + steal
            num_seen = num_seen + 1
    return total / os.sysconf("SC_CLK_TCK") if num_seen == len(names) else None


def detect() -> Machine:
    """Return the hardware of this machine, without torch and without a CUDA context."""
    gpus = vendor.gpus()
    cpu = _cpu_model()
    here = fabric.detect(gpus, vendor.topology(), cpu=cpu)
    names = sorted({gpu.name for gpu in gpus})
    # MIG slices are left out: NVML reports the memory of the whole GPU, and a slice has less.
    memories = [gpu.memory_bytes for gpu in gpus if gpu.memory_bytes and not gpu.mig]
    return Machine(
        cpu=cpu,
        num_cores=physical_cores(),
        memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        gpu=" + ".join(names) or None,
        num_gpus=len(gpus),
        gpu_memory_gib=round(min(memories) / 2**30) if memories else None,
        host=platform.node(),
        kernel=platform.release(),
        driver=vendor.driver(),
        mig=any(gpu.mig for gpu in gpus),
        infiniband=here.network in RDMA,
        fabric=here if gpus else None,
        power_limit_w=min((gpu.power_limit_w for gpu in gpus if gpu.power_limit_w), default=None),
    )


def _cpu_model() -> str:
    """Return the model of the CPU, or the architecture if /proc does not report a model."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return re.sub(r"\s+", " ", line.split(":", 1)[1]).strip()
    return platform.machine()


def software() -> dict[str, str]:
    """Return the versions of software that can change results, without importing torch."""
    versions = {"python": platform.python_version()}
    for name in ("scaleproof", "torch", "numpy", "scipy", "nvidia-nccl-cu12", "nvidia-nccl-cu13"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def c_compiler() -> str | None:
    """Return the path of the C compiler that Triton uses for its kernel launchers, or None."""
    names = filter(None, (os.environ.get("CC"), "clang", "gcc"))
    return next((path for path in map(shutil.which, names) if path), None)


def suite(folder: Path) -> dict[str, str]:
    """Return the git commit of the suites in a folder, with ``-dirty`` if files were changed.

    The result is empty if the folder is not under version control, or git is not installed.
    """
    words = ["git", "--no-optional-locks", "-C", str(folder)]  # git must not write to the folder
    words += ["describe", "--always", "--dirty", "--abbrev=12"]
    try:
        described = subprocess.run(
            [*words, "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    return {"suite": described.stdout.strip()} if described.returncode == 0 else {}
