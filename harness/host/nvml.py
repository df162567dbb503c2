"""Read facts and current readings of NVIDIA devices through NVML, and set their power limits."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.base.documents import Json
from harness.host.vendor import Gpu, Health, Pair

NAME = "NVIDIA"
NOTICE = ""
#: Bits in the mask of clock-event reasons that are set if the device runs slower than it could.
THROTTLE = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
}


#: NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX: the fields of the bytes sent and received, in KiB.
_NVLINK_TX = 138
_NVLINK_RX = 139
#: NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON and _LINK_COUNT: the fields of the speed in MB/s and the
#: number of active links.
_NVLINK_MB_S = 90
_NVLINK_COUNT = 91
#: The rate of one PCIe lane in one direction in GB/s, by generation.
_PCIE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
#: The scope with which a field is queried for all links together (UINT_MAX in nvml.h).
_ALL_LINKS = 0xFFFFFFFF


@dataclass(frozen=True, kw_only=True)
class GpuWindow:
    """The readings of a device during the measured window of a launch.

    The clock, power, temperature and utilization are (min, max) over the readings; a field is None
    if the device does not report it. ``throttle`` names the reasons for lower clocks. ``lost`` is
    True if the device stopped answering. ``mean_clock_mhz`` is the mean SM clock over the readings.
    ``energy_j`` is the energy in joules that the device used during the window, according to its
    counter. ``node`` is the number of the node that has the device.
    """

    index: int
    name: str
    sm_clock_mhz: tuple[int, ...] | None
    power_w: tuple[float, ...] | None
    temp_c: tuple[int, ...] | None
    throttle: tuple[str, ...]
    lost: bool = False
    utilization_pct: tuple[int, ...] | None = None
    energy_j: float | None = None
    node: int = 0
    mean_clock_mhz: float | None = None


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Yield the initialised NVML module, or None without a driver."""
    try:
        import pynvml  # the module of nvidia-ml-py
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _ask(nvml: Any, call: str, *arguments: Any) -> Any:
    """Return the answer of one NVML call, or None if the driver or device does not support it."""
    try:
        return getattr(nvml, f"nvml{call}")(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


@dataclass(frozen=True)
class _Device:
    """A device of NVML. A call such as ``device("GetUUID")`` queries the device."""

    nvml: Any
    index: int
    handle: Any

    def __call__(self, call: str, *arguments: Any) -> Any:
        """Return the answer of ``nvmlDevice<call>`` for this device, or None."""
        return _ask(self.nvml, f"Device{call}", self.handle, *arguments)

    def named(self, token: str) -> bool:
        """Return whether an entry of CUDA_VISIBLE_DEVICES means this device.

        The entry may be its index, the start of its UUID, or the UUID of one of its MIG slices.
        """
        if token.isdigit():
            return self.index == int(token)
        slices = range(self("GetMaxMigDeviceCount") or 0) if token.startswith("MIG-") else ()
        handles = (self("GetMigDeviceHandleByIndex", i) for i in slices)
        uuids = [
            _ask(self.nvml, "DeviceGetUUID", handle) for handle in handles if handle is not None
        ]
        return _text(self("GetUUID")).startswith(token) or token in map(_text, uuids)


def _text(value: Any) -> str:
    """Return an answer of NVML as text, or ``unknown`` if there is none."""
    return value.decode() if isinstance(value, bytes) else str(value or "unknown")


def _visible(nvml: Any) -> list[_Device]:
    """Return every device that CUDA_VISIBLE_DEVICES leaves visible, in its order."""
    count = _ask(nvml, "DeviceGetCount") or 0
    devices = (_Device(nvml, i, _ask(nvml, "DeviceGetHandleByIndex", i)) for i in range(count))
    known = [device for device in devices if device.handle is not None]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return known
    chosen = []
    for token in filter(None, (t.strip() for t in wanted.split(","))):
        match = [device for device in known if device.named(token)]
        if not match:
            break  # CUDA ignores everything after the first invalid entry
        chosen += match[:1]
    return chosen


def gpus() -> tuple[Gpu, ...]:
    """Return every visible device, or () if there is no driver."""
    with _nvml() as nvml:
        return tuple(_gpu(device) for device in _visible(nvml)) if nvml is not None else ()


def _gpu(device: _Device) -> Gpu:
    """Return the facts about a device."""
    memory = device("GetMemoryInfo")
    mig = device("GetMigMode")
    processes = device("GetComputeRunningProcesses") or ()
    plugged = device("GetPciInfo")
    return Gpu(
        index=device.index,
        name=_text(device("GetName")),
        uuid=_text(device("GetUUID")),
        memory_bytes=None if memory is None else int(memory.total),
        mig=bool(mig and mig[0]),
        used_bytes=None if memory is None else int(memory.used),
        power_limit_w=_watts(device("GetEnforcedPowerLimit")),
        default_limit_w=_watts(device("GetPowerManagementDefaultLimit")),
        max_clock_mhz=device("GetMaxClockInfo", device.nvml.NVML_CLOCK_SM),
        pids=tuple(sorted(int(process.pid) for process in processes)),
        bus_id=None if plugged is None else _text(plugged.busId),
        nvlink_gb_s=_nvlink_gb_s(device),
        pcie_gb_s=_pcie_gb_s(device),
        health=_health(device),
    )


def _nvlink_gb_s(device: _Device) -> float | None:
    """Return the total rate of a device's active NVLinks in GB/s for one direction, or None."""
    speed, count = (_field(device, number) for number in (_NVLINK_MB_S, _NVLINK_COUNT))
    return speed * count / 1000 if speed and count else None


def _pcie_gb_s(device: _Device) -> float | None:
    """Return the highest rate of a device's PCIe link in GB/s for one direction, or None."""
    generation = device("GetMaxPcieLinkGeneration")
    width = device("GetMaxPcieLinkWidth")
    lane = _PCIE_GB_S.get(generation)
    return lane * width if lane and width else None


def _health(device: _Device) -> Health:
    """Return the faults of a device and its links."""
    nvml = device.nvml
    errors = device(
        "GetTotalEccErrors",
        getattr(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED", 1),
        getattr(nvml, "NVML_VOLATILE_ECC", 0),
    )
    rows = device("GetRemappedRows")
    remapped = ""
    if rows is not None:  # a tuple of (corrected, uncorrected, pending, failed)
        remapped = "failed" if rows[3] else "pending" if rows[2] else ""
    states = [device("GetNvLinkState", link) for link in range(_MOST_NVLINKS)]
    some_up = any(state == 1 for state in states)
    persistent = device("GetPersistenceMode")
    return Health(
        uncorrected_errors=errors,
        remapped_rows=remapped,
        links_down=tuple(i for i, state in enumerate(states) if state == 0 and some_up),
        pcie_width=_now_and_most(device, "PcieLinkWidth"),
        pcie_generation=_now_and_most(device, "PcieLinkGeneration"),
        persistent=None if persistent is None else bool(persistent),
    )


def _now_and_most(device: _Device, what: str) -> tuple[int, int] | None:
    """Return the current and the highest value of a property, or None if one of them is unknown."""
    now = device(f"GetCurr{what}")
    most = device(f"GetMax{what}")
    return None if now is None or most is None else (int(now), int(most))


#: The name of the path between two devices, by their nearest common ancestor in the PCIe topology
#: (nvml.h).
_JOINED = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
#: NVML_P2P_CAPS_INDEX_READ, NVML_P2P_CAPS_INDEX_NVLINK and NVML_P2P_STATUS_OK (nvml.h).
_READ = 0
_OVER_NVLINK = 2
_OK = 0
#: NVML_NVLINK_DEVICE_TYPE_SWITCH, NVML_NVLINK_MAX_LINKS (nvml.h).
_SWITCH = 2
_MOST_NVLINKS = 18


def topology() -> tuple[Pair, ...]:
    """Return every pair of visible devices, or () without a driver."""
    with _nvml() as nvml:
        devices = _visible(nvml) if nvml is not None else []
        switched = {device.index: _switched(device) for device in devices}
        return tuple(
            _pair(a, b, switched[a.index] and switched[b.index])
            for a, b in itertools.combinations(devices, 2)
        )


def _pair(a: _Device, b: _Device, switched: bool) -> Pair:
    """Return a pair of devices and the connection between them."""
    direct = a("GetP2PStatus", b.handle, _OVER_NVLINK)
    peer = a("GetP2PStatus", b.handle, _READ)
    path = _JOINED.get(a("GetTopologyCommonAncestor", b.handle), "")
    return Pair(
        a=a.index,
        b=b.index,
        joined="NVLink" if direct == _OK else path,
        switched=switched,
        peer=None if peer is None else peer == _OK,
    )


def _switched(device: _Device) -> bool:
    """Return whether an NVLink of a device ends in an NVSwitch."""
    ends = (device("GetNvLinkRemoteDeviceType", link) for link in range(_MOST_NVLINKS))
    return any(end == _SWITCH for end in ends)


@dataclass(frozen=True, kw_only=True)
class PowerLimit:
    """The current power limit of a device, and the range in which it can be set, in watts."""

    index: int
    now_w: int | None
    least_w: int | None
    most_w: int | None


def power_limits() -> tuple[PowerLimit, ...]:
    """Return the power limits of every visible device, or () without a driver."""
    with _nvml() as nvml:
        return tuple(_limit(device) for device in _visible(nvml)) if nvml is not None else ()


def _limit(device: _Device) -> PowerLimit:
    """Return the power limits of a device."""
    least, most = device("GetPowerManagementLimitConstraints") or (None, None)
    return PowerLimit(
        index=device.index,
        now_w=_watts(device("GetPowerManagementLimit")),
        least_w=_watts(least),
        most_w=_watts(most),
    )


def limit_power(index: int, watts: int) -> bool:
    """Set the power limit of a device, and return whether NVML then reports this limit."""
    with _nvml() as nvml:
        for device in _visible(nvml) if nvml is not None else ():
            if device.index == index:
                try:
                    nvml.nvmlDeviceSetPowerManagementLimit(device.handle, watts * 1000)
                except (nvml.NVMLError, AttributeError):
                    return False
                return _watts(device("GetPowerManagementLimit")) == watts
    return False


def _watts(milliwatts: int | None) -> int | None:
    """Convert milliwatts to whole watts; None stays None."""
    return None if milliwatts is None else round(milliwatts / 1000)


def driver() -> str | None:
    """Return the version of the driver, or None without one."""
    with _nvml() as nvml:
        version = None if nvml is None else _ask(nvml, "SystemGetDriverVersion")
        return None if version is None else _text(version)


def poll() -> list[dict[str, Json]]:
    """Read every visible device once, including its links."""
    with _nvml() as nvml:
        return (
            [_reading(device, links=True) for device in _visible(nvml)] if nvml is not None else []
        )


def follow(
    file: Path,
    places: Collection[int],
    every_s: float,
    over: Callable[[float], bool],
    *,
    links: bool,
) -> None:
    """Write a line with readings of some visible devices every ``every_s`` seconds.

    ``places`` are the positions of the devices among the visible ones. ``over(seconds)`` waits for
    at most this time and returns True if the recording must end; one last line is then written.
    Nothing is written without a driver. ``links`` adds readings of PCIe and NVLink. They are
    optional, because a query of the PCIe counters takes 20 ms.
    """
    with _nvml() as nvml:
        if nvml is None:
            return
        devices = [device for place, device in enumerate(_visible(nvml)) if place in places]
        with file.open("w", encoding="utf-8") as lines:
            last = False
            while True:
                readings = [_reading(device, links=links) for device in devices]
                lines.write(json.dumps(readings) + "\n")
                lines.flush()  # because this process may be killed at any time
                if last:
                    return
                last = over(every_s)


def followed(file: Path) -> list[list[dict[str, Json]]]:
    """Return the readings that ``follow`` wrote, one list for each line.

    Incomplete lines are skipped.
    """
    polls = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
        with contextlib.suppress(ValueError):
            polls.append(json.loads(line))
    return polls


def _reading(device: _Device, *, links: bool) -> dict[str, Json]:
    """Read a device once.

    The reading has the clock, the power, the temperature, the mask of throttle reasons, the
    utilization in percent, and the energy in mJ since the driver was loaded. With ``links`` it also
    has the PCIe traffic in kB/s, and the NVLink traffic in kB since the driver was loaded.
    ``time_ns`` is the time of the same clock as in the ranks' traces.
    """
    power, name, used = (device(f"Get{x}") for x in ("PowerUsage", "Name", "UtilizationRates"))
    reading: dict[str, Json] = {
        "time_ns": time.time_ns(),
        "index": device.index,
        "name": None if name is None else _text(name),
        "sm_clock_mhz": device("GetClockInfo", device.nvml.NVML_CLOCK_SM),
        "power_w": None if power is None else power / 1000,
        "temp_c": device("GetTemperature", device.nvml.NVML_TEMPERATURE_GPU),
        "throttle": device("GetCurrentClocksEventReasons"),
        "utilization_pct": None if used is None else int(used.gpu),
        "energy_mj": device("GetTotalEnergyConsumption"),
    }
    if links:
        reading |= {
            "pcie_tx_kb_s": device("GetPcieThroughput", 0),
            "pcie_rx_kb_s": device("GetPcieThroughput", 1),
            "nvlink_tx_kb": _field(device, _NVLINK_TX),
            "nvlink_rx_kb": _field(device, _NVLINK_RX),
        }
    return reading


def _field(device: _Device, number: int) -> int | None:
    """Return one field value of a device over all links, or None if it is not supported."""
    values = device("GetFieldValues", [(number, _ALL_LINKS)])
    if not values or values[0].nvmlReturn != 0:
        return None
    return int(values[0].value.ullVal)


def summarise(
    polls: Sequence[Sequence[dict[str, Json]]],
    window_ns: tuple[int, int] | None = None,
    node: int = 0,
) -> tuple[GpuWindow, ...]:
    """Summarise the readings of each device.

    Only readings within ``window_ns`` count, because devices are idle during set-up and then have
    different clocks. If no reading is within the window, all readings count. A device that stopped
    answering is marked as ``lost``.
    """
    windows = []
    for index in sorted({r["index"] for poll_ in polls for r in poll_}):
        readings = [r for poll_ in polls for r in poll_ if r["index"] == index]
        low, high = window_ns or (readings[0]["time_ns"], readings[-1]["time_ns"])
        rows = [reading for reading in readings if low <= reading["time_ns"] <= high] or readings
        named = [reading["name"] for reading in readings if reading["name"] is not None]
        masks = [row["throttle"] for row in rows if row["throttle"] is not None]
        reasons = {name for mask in masks for bit, name in THROTTLE.items() if mask & bit}
        windows.append(
            GpuWindow(
                index=index,
                name=named[0] if named else "unknown",
                sm_clock_mhz=_spread(rows, "sm_clock_mhz"),
                power_w=_spread(rows, "power_w"),
                temp_c=_spread(rows, "temp_c"),
                throttle=tuple(sorted(reasons)),
                utilization_pct=_spread(rows, "utilization_pct"),
                lost=readings[-1]["name"] is None or all(r["index"] != index for r in polls[-1]),
                energy_j=_energy_j(readings, low, high),
                node=node,
                mean_clock_mhz=_mean(rows, "sm_clock_mhz"),
            )
        )
    return tuple(windows)


def _mean(rows: Sequence[dict[str, Json]], key: str) -> float | None:
    """Return the mean of a value over readings, or None without values."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return fmean(values) if values else None


def _energy_j(rows: Sequence[dict[str, Json]], low: int, high: int) -> float | None:
    """Return the energy in joules that a device used between two times.

    The energy counter is interpolated linearly between readings. Return None if the device has no
    counter, or if one of the times lies outside all readings.
    """
    known = [(row["time_ns"], row["energy_mj"]) for row in rows if row.get("energy_mj") is not None]
    if len(known) < 2 or not known[0][0] <= low < high <= known[-1][0]:
        return None

    def at(moment: int) -> float:
        after = next(i for i, (when, _) in enumerate(known) if when >= moment)
        (t0, e0), (t1, e1) = known[max(0, after - 1)], known[after]
        return float(e1) if t1 == t0 else e0 + (e1 - e0) * (moment - t0) / (t1 - t0)

    return (at(high) - at(low)) / 1e3


def _spread(rows: Sequence[dict[str, Json]], key: str) -> tuple[Any, ...] | None:
    """Return the smallest and the largest value over readings, or None without values."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return (min(values), max(values)) if values else None


def refused_power_cap(watts: int) -> str:
    """Return the reason why devices cannot be limited to this power, or "" if they can.

    The function tests this by setting the current limit again, so no limit changes.
    """
    limits = power_limits()
    if not limits:
        return "no NVIDIA driver answers on this machine"
    for limit in limits:
        if limit.now_w is None or limit.least_w is None or limit.most_w is None:
            return f"NVML reports no power limit for GPU {limit.index}"
        if not limit.least_w <= watts <= limit.most_w:
            return f"GPU {limit.index} accepts {limit.least_w} to {limit.most_w} W, not {watts}"
        if not limit_power(limit.index, limit.now_w):
            return (
                f"NVML does not let this user set the power limit of GPU {limit.index}: run as"
                f" root, or ask the site to set it (nvidia-smi -pl {watts}) and run each power cap"
                " separately"
            )
    return ""


@contextlib.contextmanager
def capped_power(places: Collection[int], watts: int) -> Iterator[None]:
    """Limit the power of the visible devices at these positions, and restore it at the end.

    If ``watts`` is 0, nothing is changed. An error while setting a limit is ignored here, because
    the correctness checks compare the actual limit with the requested one.
    """
    before = [limit for i, limit in enumerate(power_limits()) if watts and i in places]
    for limit in before:
        limit_power(limit.index, watts)
    try:
        yield
    finally:
        for limit in before:
            if limit.now_w is not None:
                limit_power(limit.index, limit.now_w)
