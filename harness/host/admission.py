"""Admission: is this host fit to be measured on? Before a run, and over each of its launches.

A host that is not gives no PASS and no FAIL, only INCONCLUSIVE with the reasons and what to do.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from harness.base import programs
from harness.host import devices as sheets, fabric, machine, nvml, vendor
from harness.host.fabric import LinkClass

#: Share of a core's time that others may take, on average over the cores in use.
FOREIGN_LOAD = 0.25
#: Share of a window for which a CPU quota may hold ranks back.
THROTTLED = 0.05
#: Deviation between launches of one arm (from A/A pilots) beyond which nothing can be told.
LAUNCH_SD = 0.15
#: Free host memory, as a share of all, below which launches may swap.
FREE_MEMORY = 0.05
#: Devices of one name whose set clocks differ by more are not equal.
CLOCK_SPREAD = 0.05
#: CPUs that a rank of a GPU needs: its own thread, autograd's, its backend's, its data's.
CPUS_PER_GPU = 4
#: Device memory that a device in nobody's use may hold.
IDLE_DEVICE_BYTES = 2 << 30
#: How long one look at the load takes, and how often a busy host is looked at again.
LOOK_S = 0.3
LOOKS = 20


class Level(StrEnum):
    """OK; WARN may spoil numbers; BAD stops launches, or leaves no verdict standing."""

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One check's answer, with what to do when it is not ok; ``device`` is the place of the GPU
    that it is about among the visible ones.
    """

    check: str
    level: Level
    text: str
    advice: str = ""
    device: int | None = None


def examine(num_gpus: int | None = None) -> tuple[Finding, ...]:
    """Every check that decides whether verdicts can stand; takes at most LOOKS x LOOK_S.

    ``num_gpus``: only the first visible GPUs are in use; None: all of them. A run on the CPU of a
    host uses none, and neither what others do on the other GPUs nor their state counts.
    """
    return (load(), memory(), *gpus(vendor.gpus()[:num_gpus]))


def load() -> Finding:
    """CPU time that others use while we sleep. A busy host is given some seconds to calm down."""
    cpus = os.sched_getaffinity(0)
    share = 0.0
    workers = Workers()
    for _ in range(LOOKS):
        before = machine.busy_s(cpus)
        began = time.monotonic()
        time.sleep(LOOK_S)
        after = machine.busy_s(cpus)
        took = time.monotonic() - began
        if before is None or after is None:
            return Finding(check="load", level=Level.OK, text="n/a: no /proc/stat")
        share = (after - before) / took / len(cpus)
        if share <= FOREIGN_LOAD:
            break
    text = f"other processes use {share:.0%} of {len(cpus)} CPUs"
    if busy := workers.computing():
        leftovers = set(workers.left())
        if gone := " ".join(str(p) for p in busy if p in leftovers):
            advice = f"their run is gone, end them: kill {gone}"
            return _bad("load", f"{text}; ranks that a run left behind are computing", advice)
        runs = " ".join(map(str, workers.runs()))
        return _bad(
            "load", f"{text}; ranks of another run (pid {runs}) are computing", "wait for it"
        )
    if share > FOREIGN_LOAD:
        advice = "find these processes (top -d 1), stop them or use another machine, and run again"
        return _bad("load", text, advice)
    return Finding(check="load", level=Level.OK, text=text)


def _joined(command_line: bytes) -> bytes:
    """Where an agent dials in, as its command line says: agents of one run share it."""
    words = command_line.split(b"\0")
    return words[words.index(b"--join") + 1] if b"--join" in words[:-1] else b""


class Workers:
    """Processes of this project's ranks and agents, whose they are, and which of them compute."""

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}
        self._before = self._ticks()

    def _ticks(self) -> dict[int, int]:
        """CPU ticks of each training process, but for this one and the agents of its run."""
        ticks = {}
        run = _joined(Path("/proc/self/cmdline").read_bytes())
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes()
                fields = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if programs.TRAINING.encode() in command:
                pid = int(process.name)
                if pid == os.getpid() or (run and _joined(command) == run):
                    continue
                if f"--parent={os.getpid()}".encode() in command:
                    continue  # our own
                ticks[pid] = int(fields[11]) + int(fields[12])
                owner = re.search(rb"--parent=(\d+)", command)  # an agent's, and its ranks' too
                self._owners[pid] = int(owner[1]) if owner else pid
        return ticks

    def left(self) -> list[int]:
        """Those whose run is gone: nobody will end them."""
        return sorted(p for p in self._before if not Path(f"/proc/{self._owners[p]}").exists())

    def runs(self) -> list[int]:
        """The programs in progress that others belong to."""
        leftover = set(self.left())
        return sorted({self._owners[p] for p in self._before if p not in leftover})

    def computing(self) -> list[int]:
        """Those that used the CPU since: more than 3 ticks of 10 ms."""
        after = self._ticks()
        return sorted(p for p, t in self._before.items() if after.get(p, t) - t > 3)


def memory() -> Finding:
    """Memory that is free on the host, page cache counted as free."""
    facts = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    free, total = (int(facts[k].split()[0]) for k in ("MemAvailable", "MemTotal"))
    text = f"{free / 2**20:.1f} of {total / 2**20:.1f} GiB available"
    if free < FREE_MEMORY * total:
        advice = "free some memory: a launch that swaps measures the disk"
        return _bad("memory", text, advice)
    return Finding(check="memory", level=Level.OK, text=text)


def gpus(devices: Sequence[vendor.Gpu]) -> list[Finding]:
    """Foreign processes, power caps, throttling and unequal clocks of the visible devices."""
    if not devices:
        return []
    log = kernel_log()
    notice = vendor.present().NOTICE
    unread = Finding(check="gpus", level=Level.WARN, text=notice, advice="rocm-smi")
    findings = [unread] if notice else []
    findings += [
        replace(finding, device=place)
        for place, device in enumerate(devices)
        for finding in (*_gpu(device), *_broken(device, log))
    ]
    findings += _without_links(devices)
    used = {device.index for device in devices}
    for window in nvml.summarise([nvml.poll()]):
        if window.index not in used:
            continue
        if slowed := [r for r in window.throttle if r != "sw_power_cap"]:
            advice = "nvidia-smi -q -d PERFORMANCE; check cooling and power"
            findings.append(
                _bad("gpus", f"GPU {window.index} is slowed: {', '.join(slowed)}", advice)
            )
    names = sorted({device.name for device in devices})
    clocks = [device.max_clock_mhz for device in devices if device.max_clock_mhz]
    if len(names) == 1 and clocks and min(clocks) < (1 - CLOCK_SPREAD) * max(clocks):
        text = f"equal GPUs have unequal clocks: {min(clocks)} to {max(clocks)} MHz"
        findings.append(_bad("gpus", text, "nvidia-smi --reset-applications-clocks"))
    if len(names) > 1:
        text = f"unequal: {' + '.join(names)}"
        advice = "use baseline sum_of_devices"
        findings.append(Finding(check="gpus", level=Level.WARN, text=text, advice=advice))
    num_cpus = len(os.sched_getaffinity(0))
    if num_cpus < CPUS_PER_GPU * len(devices):
        text = f"{num_cpus} CPUs for {len(devices)} GPUs"
        advice = f"have {CPUS_PER_GPU * len(devices)} CPUs at least; Slurm: --exclusive, or cpus"
        findings.append(Finding(check="gpus", level=Level.WARN, text=text, advice=advice))
    usual = f"{len(devices)}x {names[0]}, driver {vendor.driver()}"
    return findings or [Finding(check="gpus", level=Level.OK, text=usual)]


#: What holds a GPU for others, by parts of its name: how to make it let go.
_SERVICES = (
    ("cuda-mps", "an MPS server runs: echo quit | nvidia-cuda-mps-control"),
    ("nv-hostengine", "DCGM profiles: dcgmi profile --pause"),
)


def _name(pid: int) -> str:
    """The name of a process; empty where it cannot be seen (another container)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    except (OSError, UnicodeDecodeError):
        return ""


def _gpu(g: vendor.Gpu) -> Iterator[Finding]:
    if g.pids:
        names = {pid: _name(pid) for pid in g.pids}
        listed = ", ".join(f"{pid} ({name})" if name else f"{pid}" for pid, name in names.items())
        text = f"GPU {g.index} is used by pid{'s' if len(names) > 1 else ''} {listed}"
        services = {advice for name in names.values() for n, advice in _SERVICES if n in name}
        yield _bad("gpus", text, "; ".join(sorted(services)) or "stop them, or hide the GPU")
    elif g.used_bytes is not None and g.used_bytes > IDLE_DEVICE_BYTES:
        text = f"GPU {g.index} holds {g.used_bytes / 2**30:.1f} GiB of unknown processes"
        yield _bad("gpus", text, "nvidia-smi; a process of another container may hold it")
    if g.power_limit_w and g.default_limit_w and g.power_limit_w < g.default_limit_w:
        text = f"GPU {g.index} is capped at {g.power_limit_w} of {g.default_limit_w} W"
        advice = "the cap is part of the fingerprint; nvidia-smi -pl changes it"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)


def kernel_log(device: Path = Path("/dev/kmsg")) -> str:
    """The messages of the kernel since its start; empty for who may not read them."""
    messages = []
    try:
        log = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while True:
            messages.append(os.read(log, 8192).decode(errors="replace"))
    except OSError:  # the last one was read
        return "".join(messages)
    finally:
        os.close(log)


#: An error that NVIDIA's driver reports, with the slot of its device:
#: ``NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus``.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)", re.I)


def _broken(g: vendor.Gpu, log: str) -> Iterator[Finding]:
    """Find faults of a GPU: in memory, PCIe lanes or NVLinks, or errors in the kernel log."""
    health = g.health
    look = f"nvidia-smi -q -i {g.index}"
    if health.uncorrected_errors:
        text = f"GPU {g.index} had {health.uncorrected_errors} uncorrected memory errors"
        yield _bad("gpus", text, f"{look} -d ECC; reset the GPU, or replace it")
    if health.remapped_rows == "failed":
        text = f"GPU {g.index} has a row of memory that could not be remapped"
        yield _bad("gpus", text, f"{look} -d ROW_REMAPPER; replace the GPU")
    elif health.remapped_rows:
        text = f"GPU {g.index} has a row of memory that waits to be remapped"
        advice = f"nvidia-smi --gpu-reset -i {g.index}"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)
    if health.links_down:
        links = ", ".join(map(str, health.links_down))
        text = f"GPU {g.index}: NVLink {links} is down"
        yield _bad("gpus", text, f"nvidia-smi nvlink -s -i {g.index}")
    if health.pcie_width and health.pcie_width[0] < health.pcie_width[1]:
        now, most = health.pcie_width
        text = f"GPU {g.index} has {now} of {most} PCIe lanes"
        yield _bad("gpus", text, f"{look} -d PCI; reseat the card or its riser")
    if health.persistent is False:
        text = f"GPU {g.index}: persistence mode is off, so every launch loads the driver"
        advice = "nvidia-smi -pm 1"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)
    slot = (g.bus_id or "")[-12:-2].lower()
    xids = sorted({int(number) for at, number in _XID.findall(log) if slot and slot in at.lower()})
    if xids:
        text = f"GPU {g.index}: the driver reported Xid {', '.join(map(str, xids))}"
        advice = "dmesg | grep Xid; https://docs.nvidia.com/deploy/xid-errors"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)


def _without_links(devices: Sequence[vendor.Gpu]) -> Iterator[Finding]:
    """Devices that are made for a switch or xGMI, and reach each other over PCIe only."""
    sheet = sheets.named(devices[0].name)
    used = {device.index for device in devices}
    pairs = [pair for pair in vendor.topology() if {pair.a, pair.b} <= used]
    link = fabric.detect(devices, pairs).link
    over_pcie = link in (LinkClass.PCIE_PEER, LinkClass.PCIE_HOST)
    if over_pcie and sheet is not None and sheet.link in (LinkClass.NVSWITCH, LinkClass.XGMI):
        text = f"{devices[0].name} are joined by {link} instead of {sheet.link}"
        tool = "rocm-smi --showtopo" if sheet.link is LinkClass.XGMI else "nvidia-smi topo -m"
        advice = f"{tool}; a virtual machine may lack the links, or a fabric manager"
        yield _bad("gpus", text, advice)


def _bad(check: str, text: str, advice: str) -> Finding:
    return Finding(check=check, level=Level.BAD, text=text, advice=advice)
