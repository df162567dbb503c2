"""The facts of one machine that others of its kind share: hardware, topology, software, limits.

Flat, name -> text, so that those of many nodes can be laid side by side. Unknown is left out.
"""

import os
import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from harness.base.documents import fields_of
from harness.host import environment, machine, topology, vendor

#: Clock sources that are read without a system call, and tick alike on all cores.
GOOD_CLOCKS = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "ptp_kvm")


def facts() -> dict[str, str]:
    """Everything that can be read here without root, torch or a CUDA context."""
    return {name: text for name, text in _facts() if text}


def _facts() -> Iterator[tuple[str, str]]:
    machine_here = machine.detect()
    for name, value in fields_of(machine_here).items():
        yield f"hardware: {name}", "" if value is None else str(value)
    yield from topology.facts()
    if kinds := Counter(pair.joined for pair in vendor.topology() if pair.joined):
        yield "topology: between gpus", ", ".join(f"{n}x {kind}" for kind, n in kinds.most_common())
    yield "topology: gpus by numa node", _gpu_nodes()
    for name, text in _interfaces():
        yield f"network: {name}", text
    for name, text in machine.software().items():
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
        if not environment.names_interface(name):  # a node knows its own
            yield f"environment: {name}", text


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _image() -> str:
    """The digest of the image that this runs in: as podman says it, or as the site does."""
    if image := os.environ.get("SCALEPROOF_IMAGE"):
        return image
    lines = dict(line.partition("=")[::2] for line in _read("/run/.containerenv").splitlines())
    return lines.get("imageid", "").strip('"')


def _gpu_nodes() -> str:
    """Which GPU is near which CPUs."""
    near = {
        gpu.index: _read(f"/sys/bus/pci/devices/{gpu.bus_id[-12:].lower()}/numa_node")
        for gpu in vendor.gpus()
        if gpu.bus_id
    }
    return ", ".join(f"{i}: {node}" for i, node in near.items() if node)


def _interfaces() -> Iterator[tuple[str, str]]:
    """Network cards that have a device, and InfiniBand ports."""
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
