"""Reading NVML, tested with a fake library: clocks, throttling, missing calls, lost device, MIG."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.host import devices, machine, nvml


class FakeError(Exception):
    """The error that the fake library raises."""


class Fake:
    """A fake NVML with answers that were recorded on an 8-GPU node, reduced to two devices."""

    NVMLError = FakeError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, **changes: Any) -> None:
        self.devices = [
            dict(name="NVIDIA H200", uuid=f"GPU-{i}abc", total=150_754_820_096, limit=700_000,
                 clock=1980, power=687_123, temp=61, mask=0x0, mig=[0, 0], used=600 << 20,
                 default=700_000, app=1980, pids=[], energy=5_000_000)
            for i in range(2)
        ]  # fmt: skip
        self.root = True
        self.missing: set[str] = set()
        self.lost: set[int] = set()
        vars(self).update(changes)

    def nvmlInit(self) -> None:
        if "driver" in self.missing:
            raise FakeError

    def nvmlShutdown(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:  # noqa: C901  (a branch for each kind of call)
        if name in self.missing or not name.startswith("nvml"):
            raise AttributeError(name)
        field = {
            "nvmlDeviceGetName": "name", "nvmlDeviceGetUUID": "uuid",
            "nvmlDeviceGetPowerManagementLimit": "limit",
            "nvmlDeviceGetEnforcedPowerLimit": "limit", "nvmlDeviceGetPowerUsage": "power",
            "nvmlDeviceGetClockInfo": "clock", "nvmlDeviceGetTemperature": "temp",
            "nvmlDeviceGetCurrentClocksEventReasons": "mask", "nvmlDeviceGetMigMode": "mig",
            "nvmlDeviceGetPowerManagementDefaultLimit": "default",
            "nvmlDeviceGetMaxClockInfo": "app",
            "nvmlDeviceGetTotalEnergyConsumption": "energy",
        }.get(name)  # fmt: skip
        if name == "nvmlDeviceGetCount":
            return lambda: len(self.devices)
        if name == "nvmlDeviceGetHandleByIndex":
            return lambda i: i
        if name == "nvmlSystemGetDriverVersion":
            return lambda: b"580.65.06"
        if name == "nvmlDeviceGetMaxMigDeviceCount":
            return lambda h: 0

        def answer(handle: int, *_: Any) -> Any:
            if handle in self.lost:
                raise FakeError
            if name == "nvmlDeviceGetPowerManagementLimitConstraints":
                return [200_000, 700_000]
            if name == "nvmlDeviceSetPowerManagementLimit":
                if not self.root:
                    raise FakeError
                self.devices[handle]["limit"] = _[0]
                return None
            if name == "nvmlDeviceGetMemoryInfo":
                device = self.devices[handle]
                return SimpleNamespace(total=device["total"], used=device["used"])
            if name == "nvmlDeviceGetComputeRunningProcesses":
                return [SimpleNamespace(pid=p) for p in self.devices[handle]["pids"]]
            if name == "nvmlDeviceGetPciInfo":
                return SimpleNamespace(busId=f"00000000:{0x1B + handle:02X}:00.0".encode())
            if name == "nvmlDeviceGetUtilizationRates":
                return SimpleNamespace(gpu=97, memory=40)
            if name == "nvmlDeviceGetPcieThroughput":
                return 1_000 + _[0]
            if name == "nvmlDeviceGetFieldValues":
                (((field_id, scope),),) = _  # scope 0 is the first of 18 links
                value = SimpleNamespace(ullVal=5_000 if scope == 0xFFFFFFFF else 278)
                return [SimpleNamespace(nvmlReturn=3 * (field_id == 139), value=value)]
            if field is None:
                raise FakeError(name)
            return self.devices[handle][field]

        return answer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = Fake()
    monkeypatch.setitem(sys.modules, "pynvml", found)  # type: ignore[arg-type]
    return found


def test_devices(fake: Fake) -> None:
    first, second = nvml.gpus()
    assert (first.name, first.memory_bytes) == ("NVIDIA H200", 150_754_820_096)
    assert second.uuid == "GPU-1abc" and not second.mig
    assert second.bus_id == "00000000:1C:00.0"
    assert nvml.driver() == "580.65.06"
    found = machine.detect()
    assert (found.num_gpus, found.gpu, found.gpu_memory_gib) == (2, "NVIDIA H200", 140)
    assert found.hardware_class.startswith("2x-nvidia-h200-")
    assert devices.peaks("NVIDIA H200").get("bfloat16") == pytest.approx(989.4e12)
    assert devices.peaks("NVIDIA H100").get("bfloat16") is None, "an unknown device gets no peak"
    assert devices.peaks("NVIDIA H200 NVL").get("bfloat16") == pytest.approx(836e12)
    assert devices.peaks("NVIDIA H200 MIG 1g.18gb").get("bfloat16") is None, "a slice of one"


def test_a_power_limit_is_restored_after_an_interrupt(fake: Fake) -> None:
    def limits() -> list[int]:
        return [device["limit"] // 1000 for device in fake.devices]

    with pytest.raises(KeyboardInterrupt), nvml.capped_power([1], 400):
        assert limits() == [700, 400]
        raise KeyboardInterrupt
    assert limits() == [700, 700]
    with nvml.capped_power([0, 1], 0):  # a case without a cap touches nothing
        assert limits() == [700, 700]


def test_the_reason_is_reported_if_no_power_limit_can_be_set(fake: Fake) -> None:
    assert nvml.refused_power_cap(400) == ""
    assert "accepts 200 to 700 W, not 900" in nvml.refused_power_cap(900)
    fake.root = False
    assert "run as root" in nvml.refused_power_cap(400)
    with nvml.capped_power([0], 400):
        assert fake.devices[0]["limit"] == 700_000  # not held: the gate's check says so
    fake.missing = {"driver"}
    assert nvml.refused_power_cap(400) == "no NVIDIA driver answers on this machine"


def test_window_keeps_extremes_and_names_throttling(fake: Fake) -> None:
    first = nvml.poll()
    fake.devices[1].update(clock=1410, mask=0x4 | 0x40, temp=88)
    a, b = nvml.summarise([first, nvml.poll()])
    assert (a.sm_clock_mhz, a.throttle, a.lost) == ((1980, 1980), (), False)
    assert b.sm_clock_mhz == (1410, 1980) and b.temp_c == (61, 88)
    assert b.throttle == ("hw_thermal", "sw_power_cap")


def test_a_reading_has_link_counters_and_a_time_stamp(fake: Fake) -> None:
    before = time.time_ns()
    first = nvml.poll()[0]
    assert before <= first["time_ns"] <= time.time_ns()
    assert (first["pcie_tx_kb_s"], first["pcie_rx_kb_s"]) == (1_000, 1_001)
    assert (first["nvlink_tx_kb"], first["nvlink_rx_kb"]) == (5_000, None), "None: not supported"
    assert nvml.summarise([[first]])[0].utilization_pct == (97, 97)


def test_missing_calls_are_none_not_zero(fake: Fake) -> None:
    fake.missing = {"nvmlDeviceGetClockInfo", "nvmlDeviceGetCurrentClocksEventReasons"}
    window = nvml.summarise([nvml.poll()])[0]
    assert window.sm_clock_mhz is None and window.throttle == () and window.power_w is not None


def test_a_lost_device_is_reported(fake: Fake) -> None:
    first = nvml.poll()
    fake.lost = {1}
    a, b = nvml.summarise([first, nvml.poll()])
    assert (a.lost, b.lost) == (False, True)


def test_mig_is_reported(fake: Fake) -> None:
    fake.devices[0]["mig"] = [1, 1]
    assert machine.detect().mig


@pytest.mark.parametrize(
    ("visible", "seen"),
    [("1", ["GPU-1abc"]), ("", []), ("GPU-1", ["GPU-1abc"]), ("1,9,0", ["GPU-1abc"])],
)
def test_visible_devices(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, visible: str, seen: list[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [g.uuid for g in nvml.gpus()] == seen


def test_no_driver(fake: Fake) -> None:
    fake.missing = {"driver"}
    assert nvml.gpus() == () and nvml.poll() == [] and nvml.driver() is None


def reading(at_s: float, clock: int, energy_mj: int | None, index: int = 0) -> dict[str, Any]:
    return {
        "time_ns": round(at_s * 1e9), "index": index, "name": "NVIDIA H200", "power_w": 500.0,
        "sm_clock_mhz": clock, "temp_c": 50, "throttle": 0, "utilization_pct": 90,
        "energy_mj": energy_mj,
    }  # fmt: skip


def test_clocks_and_energy_are_those_of_the_window() -> None:
    """Clocks and energy of the idle GPU before the window (345 MHz, 100 W) do not count."""
    polls = [
        [reading(0, 345, 0)], [reading(10, 345, 1_000_000)], [reading(11, 1980, 1_700_000)],
        [reading(12, 1950, 2_400_000)], [reading(13, 345, 2_450_000)],
    ]  # fmt: skip
    (whole,) = nvml.summarise(polls)
    assert whole.sm_clock_mhz == (345, 1980) and whole.energy_j == pytest.approx(2450)
    (kept,) = nvml.summarise(polls, (round(10.5e9), round(12.5e9)))
    assert kept.sm_clock_mhz == (1950, 1980)
    assert kept.energy_j == pytest.approx(2425 - 1350), "straight between readings"


def test_energy_is_not_guessed() -> None:
    assert nvml.summarise([[reading(0, 1, None)], [reading(9, 1, None)]])[0].energy_j is None
    polls = [[reading(5, 1, 10)], [reading(6, 1, 20)]]
    assert nvml.summarise(polls, (0, round(5.5e9)))[0].energy_j is None, "began before any reading"


def after(readings: int) -> Callable[[float], bool]:
    """Return a callback that ends after ``readings`` readings."""
    waits = iter([False] * (readings - 1))
    return lambda seconds: next(waits, True)


def test_devices_are_followed_in_one_session_and_links_are_read_on_request(
    fake: Fake, tmp_path: Path
) -> None:
    begun: list[int] = []
    fake.nvmlInit = lambda: begun.append(1)  # type: ignore[method-assign]
    for links in (False, True):
        nvml.follow(tmp_path / "a", {0}, 0.0, after(3), links=links)
        polls = nvml.followed(tmp_path / "a")
        assert len(polls) == 4, "and one more when it is over"
        assert all([r["index"] for r in poll] == [0] for poll in polls), "the others are not ours"
        assert all(("pcie_tx_kb_s" in r) is links for poll in polls for r in poll)
    assert len(begun) == 2, "one each time, however often it reads"


def test_a_truncated_reading_is_ignored(fake: Fake, tmp_path: Path) -> None:
    nvml.follow(tmp_path / "a", {0, 1}, 0.0, after(2), links=False)
    text = (tmp_path / "a").read_text()
    (tmp_path / "a").write_text(text[:-20])
    assert len(nvml.followed(tmp_path / "a")) == 2


def test_without_a_driver_nothing_is_read(fake: Fake, tmp_path: Path) -> None:
    fake.missing.add("driver")
    nvml.follow(tmp_path / "a", {0}, 0.0, after(2), links=False)
    assert nvml.followed(tmp_path / "a") == []
