"""Check whether measurements on this host are valid, before a run and during each launch.

If the host fails a check, the verdicts of a run are INCONCLUSIVE instead of PASS or FAIL. Each
verdict states the reason and what to do.
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

#: Upper limit of the fraction of CPU time that other processes may use on the cores of a run.
FOREIGN_LOAD = 0.25
#: The largest fraction of a window for which a CPU quota may throttle ranks.
THROTTLED = 0.05
#: The largest relative standard deviation between launches of one arm for which verdicts are
#: possible. Calibration launches of the same arm measure it.
LAUNCH_SD = 0.15
#: Fraction of the host memory that must be available. If less is available, launches may swap.
FREE_MEMORY = 0.05
#: The largest relative difference of maximum clocks between devices of the same name.
CLOCK_SPREAD = 0.05
#: Number of CPUs that a rank with a GPU needs: one each for its main thread, autograd, the
#: communication backend and the data loader.
CPUS_PER_GPU = 4
#: Maximum number of bytes of memory that may be in use on an idle device.
IDLE_DEVICE_BYTES = 2 << 30
#: Duration of one measurement of the load, in seconds.
LOOK_S = 0.3
#: Maximum number of measurements of the load. They are repeated while the host is busy.
LOOKS = 20


class Level(StrEnum):
    """The severity of a finding.

    WARN means that results may be affected. BAD prevents launches or makes verdicts INCONCLUSIVE.
    """

    OK = "ok"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check.

    ``advice`` says what to do if the level is not OK. ``device`` is the position, among the visible
    GPUs, of the GPU that the finding is about.
    """

    check: str
    level: Level
    text: str
    advice: str = ""
    device: int | None = None


def examine(num_gpus: int | None = None) -> tuple[Finding, ...]:
    """Run every check that decides whether verdicts are valid.

    This takes up to LOOKS x LOOK_S seconds. ``num_gpus`` is the number of visible GPUs that the run
    uses, counted from the first one; None means all, and 0 is for a run on CPUs. The state and the
    load of the other GPUs are ignored.
    """
    return (load(), memory(), *gpus(vendor.gpus()[:num_gpus]))


def load() -> Finding:
    """Measure the CPU time that other processes use while this process sleeps.

    The measurement is repeated for some seconds if the host is busy.
    """
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
            advice = f"end these processes, whose run has ended: kill {gone}"
            return _bad("load", f"{text}; ranks that a run left behind are computing", advice)
        runs = " ".join(map(str, workers.runs()))
        return _bad(
            "load",
            f"{text}; ranks of another run (pid {runs}) are computing",
            "wait until that run has ended",
        )
    if share > FOREIGN_LOAD:
        advice = (
            "find the other processes (top -d 1), stop them or use another machine, and run again"
        )
        return _bad("load", text, advice)
    return Finding(check="load", level=Level.OK, text=text)


def _joined(command_line: bytes) -> bytes:
    """Return the address that an agent connects to, from its command line.

    The address is the same for all agents of one run.
    """
    words = command_line.split(b"\0")
    return words[words.index(b"--join") + 1] if b"--join" in words[:-1] else b""


class Workers:
    """Processes of ranks and agents of other runs on this machine.

    Creating the object records their CPU time, so that ``computing`` can find the busy ones.
    """

    def __init__(self) -> None:
        self._owners: dict[int, int] = {}
        self._before = self._ticks()

    def _ticks(self) -> dict[int, int]:
        """Return the CPU ticks of each training process that does not belong to this run."""
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
                    continue  # an agent that this process started
                ticks[pid] = int(fields[11]) + int(fields[12])
                # Ranks are forked from agents, so they have the command line of their agent.
                owner = re.search(rb"--parent=(\d+)", command)
                self._owners[pid] = int(owner[1]) if owner else pid
        return ticks

    def left(self) -> list[int]:
        """Return the processes whose main program has ended, so that no program will end them."""
        return sorted(p for p in self._before if not Path(f"/proc/{self._owners[p]}").exists())

    def runs(self) -> list[int]:
        """Return the process ids of the main programs to which these processes belong.

        Main programs that have ended are left out.
        """
        leftover = set(self.left())
        return sorted({self._owners[p] for p in self._before if p not in leftover})

    def computing(self) -> list[int]:
        """Return the processes that used over 3 CPU ticks (10 ms each) since ``__init__``."""
        after = self._ticks()
        return sorted(p for p, t in self._before.items() if after.get(p, t) - t > 3)


def memory() -> Finding:
    """Check the available memory of the host; the page cache counts as available."""
    facts = dict(
        line.split(":", 1)
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        if ":" in line
    )
    free, total = (int(facts[k].split()[0]) for k in ("MemAvailable", "MemTotal"))
    text = f"{free / 2**20:.1f} of {total / 2**20:.1f} GiB available"
    if free < FREE_MEMORY * total:
        advice = "free some memory, because a launch that swaps measures the speed of the disk"
        return _bad("memory", text, advice)
    return Finding(check="memory", level=Level.OK, text=text)


def gpus(devices: Sequence[vendor.Gpu]) -> list[Finding]:
    """Check GPUs for other processes, power caps, throttling, faults and unequal clocks."""
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
                _bad("gpus", f"GPU {window.index} is throttled: {', '.join(slowed)}", advice)
            )
    names = sorted({device.name for device in devices})
    clocks = [device.max_clock_mhz for device in devices if device.max_clock_mhz]
    if len(names) == 1 and clocks and min(clocks) < (1 - CLOCK_SPREAD) * max(clocks):
        text = f"GPUs of one model have different clocks: {min(clocks)} to {max(clocks)} MHz"
        findings.append(_bad("gpus", text, "nvidia-smi --reset-applications-clocks"))
    if len(names) > 1:
        text = f"the GPUs are of different models: {' + '.join(names)}"
        advice = "use the baseline sum_of_devices"
        findings.append(Finding(check="gpus", level=Level.WARN, text=text, advice=advice))
    num_cpus = len(os.sched_getaffinity(0))
    if num_cpus < CPUS_PER_GPU * len(devices):
        text = f"this process may use {num_cpus} CPUs for {len(devices)} GPUs"
        advice = f"use at least {CPUS_PER_GPU * len(devices)} CPUs; Slurm: --exclusive, or cpus"
        findings.append(Finding(check="gpus", level=Level.WARN, text=text, advice=advice))
    usual = f"{len(devices)}x {names[0]}, driver {vendor.driver()}"
    return findings or [Finding(check="gpus", level=Level.OK, text=usual)]


#: Services that occupy a GPU. Each entry has a part of the program's name, and advice on how to
#: make the service release the GPU.
_SERVICES = (
    ("cuda-mps", "stop the MPS server: echo quit | nvidia-cuda-mps-control"),
    ("nv-hostengine", "pause the profiling of DCGM: dcgmi profile --pause"),
)


def _name(pid: int) -> str:
    """Return the name of a process, or "" if it cannot be read (in another container)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    except (OSError, UnicodeDecodeError):
        return ""


def _gpu(g: vendor.Gpu) -> Iterator[Finding]:
    """Find other processes, memory in use and a power cap on a GPU."""
    if g.pids:
        names = {pid: _name(pid) for pid in g.pids}
        listed = ", ".join(f"{pid} ({name})" if name else f"{pid}" for pid, name in names.items())
        text = f"GPU {g.index} is used by pid{'s' if len(names) > 1 else ''} {listed}"
        services = {advice for name in names.values() for n, advice in _SERVICES if n in name}
        yield _bad(
            "gpus",
            text,
            "; ".join(sorted(services)) or "stop these processes, or hide the GPU from this run",
        )
    elif g.used_bytes is not None and g.used_bytes > IDLE_DEVICE_BYTES:
        text = f"GPU {g.index} has {g.used_bytes / 2**30:.1f} GiB in use by unknown processes"
        yield _bad("gpus", text, "nvidia-smi; a process of another container may use this memory")
    if g.power_limit_w and g.default_limit_w and g.power_limit_w < g.default_limit_w:
        text = f"GPU {g.index} is capped at {g.power_limit_w} of {g.default_limit_w} W"
        advice = "the cap is part of the machine's fingerprint; nvidia-smi -pl changes it"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)


def kernel_log(device: Path = Path("/dev/kmsg")) -> str:
    """Return the messages of the kernel since boot, or "" if this user may not read them."""
    messages = []
    try:
        log = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    try:
        while True:
            messages.append(os.read(log, 8192).decode(errors="replace"))
    except OSError:  # the last message has been read
        return "".join(messages)
    finally:
        os.close(log)


#: An error that NVIDIA's driver writes to the kernel log, with the PCI slot of the device:
#: ``NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus``.
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-f:.]+)\): (\d+)", re.I)


def _broken(g: vendor.Gpu, log: str) -> Iterator[Finding]:
    """Find faults of a GPU in its memory, PCIe lanes and NVLinks, and in the kernel log."""
    health = g.health
    look = f"nvidia-smi -q -i {g.index}"
    if health.uncorrected_errors:
        text = f"GPU {g.index} had {health.uncorrected_errors} uncorrected memory errors"
        yield _bad("gpus", text, f"{look} -d ECC; reset the GPU, or replace it")
    if health.remapped_rows == "failed":
        text = f"GPU {g.index} has a row of memory that could not be remapped"
        yield _bad("gpus", text, f"{look} -d ROW_REMAPPER; replace the GPU")
    elif health.remapped_rows:
        text = f"GPU {g.index} has a row of memory that the next reset will remap"
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
        text = f"GPU {g.index}: persistence mode is off, so every launch loads the driver again"
        advice = "nvidia-smi -pm 1"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)
    slot = (g.bus_id or "")[-12:-2].lower()
    xids = sorted({int(number) for at, number in _XID.findall(log) if slot and slot in at.lower()})
    if xids:
        text = f"GPU {g.index}: the driver reported Xid {', '.join(map(str, xids))}"
        advice = "dmesg | grep Xid; https://docs.nvidia.com/deploy/xid-errors"
        yield Finding(check="gpus", level=Level.WARN, text=text, advice=advice)


def _without_links(devices: Sequence[vendor.Gpu]) -> Iterator[Finding]:
    """Find GPUs that can reach each other only over PCIe although their model has faster links."""
    sheet = sheets.named(devices[0].name)
    used = {device.index for device in devices}
    pairs = [pair for pair in vendor.topology() if {pair.a, pair.b} <= used]
    link = fabric.detect(devices, pairs).link
    over_pcie = link in (LinkClass.PCIE_PEER, LinkClass.PCIE_HOST)
    if over_pcie and sheet is not None and sheet.link in (LinkClass.NVSWITCH, LinkClass.XGMI):
        text = f"{devices[0].name} GPUs are connected by {link} instead of {sheet.link}"
        tool = "rocm-smi --showtopo" if sheet.link is LinkClass.XGMI else "nvidia-smi topo -m"
        advice = f"{tool}; a virtual machine may have no access to the links, or no fabric manager"
        yield _bad("gpus", text, advice)


def _bad(check: str, text: str, advice: str) -> Finding:
    """Return a finding of level BAD."""
    return Finding(check=check, level=Level.BAD, text=text, advice=advice)
