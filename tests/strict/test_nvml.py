"""NVML through the real nvidia-ml-py and ctypes, with a library that the test compiles."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.strict.machine import environment

ROOT = Path(__file__).parents[2]
ASK = """
import json
from harness.base.documents import to_doc
from harness.host import admission, machine, nvml
print(json.dumps({
    "gpus": [to_doc(g) for g in nvml.gpus()], "driver": nvml.driver(), "topology": [to_doc(p) for p in nvml.topology()],
    "windows": [to_doc(w) for w in nvml.summarise([nvml.poll(), nvml.poll()])],
    "machine": to_doc(machine.detect()),
    "found": [to_doc(f) for f in admission.gpus(nvml.gpus())],
}))
"""


def reported(folder: Path, num_gpus: int = 2, **more: str) -> Any:
    """Return the harness's view of a machine whose library reports these values."""
    done = subprocess.run(
        [sys.executable, "-c", ASK], env=dict(environment(folder, num_gpus, **more)), cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("nvml")


def test_devices_are_reported_as_they_are(library: Path) -> None:
    seen = reported(library, 3, STRICT_MEMORY=str(80 << 30))
    assert [g["index"] for g in seen["gpus"]] == [0, 1, 2] and seen["driver"] == "580.95.05"
    first = seen["gpus"][0]
    assert (first["name"], first["memory_bytes"]) == ("NVIDIA Strict", 80 << 30)
    assert first["max_clock_mhz"] == 1980 and first["power_limit_w"] == 700
    assert seen["machine"]["gpu_memory_gib"] == 80 and seen["machine"]["num_gpus"] == 3
    assert [pair["joined"] for pair in seen["topology"]] == ["NVLink"] * 3


def test_without_a_driver_there_is_no_gpu(library: Path) -> None:
    seen = reported(library, STRICT_DRIVER="none")
    assert seen["gpus"] == [] and seen["driver"] is None and seen["machine"]["gpu"] is None


def test_a_mig_slice_is_not_reported_with_the_memory_of_its_gpu(library: Path) -> None:
    seen = reported(library, 1, STRICT_MIG="1")
    assert seen["machine"]["mig"] is True and seen["machine"]["gpu_memory_gib"] is None


def test_a_lost_gpu_is_reported(library: Path) -> None:
    seen = reported(library, STRICT_LOST="1")
    assert [w["lost"] for w in seen["windows"]] == [False, True]


def test_throttling_is_reported(library: Path) -> None:
    seen = reported(library, STRICT_THROTTLE=str(0x40 | 0x4))
    assert [w["throttle"] for w in seen["windows"]] == [["hw_thermal", "sw_power_cap"]] * 2


@pytest.mark.parametrize("function", ["nvmlDeviceGetMemoryInfo", "nvmlDeviceGetTotalEnergyConsumption",
                                      "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetMigMode"])  # fmt: skip
def test_a_value_that_a_device_does_not_support_is_unknown(library: Path, function: str) -> None:
    seen = reported(library, 1, STRICT_UNSUPPORTED=function)
    assert len(seen["gpus"]) == 1
    assert function != "nvmlDeviceGetMemoryInfo" or seen["gpus"][0]["memory_bytes"] is None
    assert "Energy" not in function or seen["windows"][0]["energy_j"] is None


def test_an_old_driver_without_newer_functions_works(tmp_path: Path) -> None:
    from tests.strict.machine import library as compiled

    compiled(tmp_path, "-DOLD_DRIVER")
    seen = reported(tmp_path, 1)
    assert seen["windows"][0]["throttle"] == [] and seen["gpus"][0]["name"] == "NVIDIA Strict"


def test_another_process_on_a_gpu_is_a_finding(library: Path) -> None:
    quiet = {f["level"] for f in reported(library)["found"]}
    busy = reported(library, STRICT_PID="1")["found"]
    assert "bad" not in quiet
    assert any(f["level"] != "ok" and "process" in f["text"] for f in busy), busy


def test_faults_and_fabrics_are_reported(library: Path) -> None:
    plants = dict(STRICT_ECC="1", STRICT_NARROW="1", STRICT_LINK_DOWN="0", STRICT_PENDING="0")
    texts = " ".join(finding["text"] for finding in reported(library, **plants)["found"])
    for fault in ("GPU 1 had 3 uncorrected", "GPU 1 has 8 of 16 PCIe lanes",
                  "GPU 0: NVLink 1 is down", "GPU 0 has a row of memory that the next"):  # fmt: skip
        assert fault in texts, texts
    for fabric in ("nvswitch", "nvlink", "pcie-peer", "pcie-host"):
        assert reported(library, STRICT_FABRIC=fabric)["machine"]["fabric"]["link"] == fabric
