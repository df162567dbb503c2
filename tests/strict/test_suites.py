"""Verdicts of ``pytest suites/ --gpus N`` on strict devices whose products and links take time.

    python -m pytest tests/strict/test_suites.py -m full -k "2-healthy"

The rates are so low that the work of two cores is hidden behind a step, so that only the times of
the simulated device and links are measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.strict.machine import environment

ROOT = Path(__file__).parents[2]
#: A device that needs most of a second for a step of decoder-nano, and links that deliver 90 % of
#: the 20 MB/s which the driver reports. More ranks have longer steps, as two cores run them all.
RATES = {2: "0.5", 4: "0.35", 8: "0.35"}
HEALTHY = dict(STRICT_MEMORY=str(2 << 30), STRICT_LINK_MB_S="18")
FAMILIES = {
    "fabric/all_reduce", "ddp/decoder-nano/weak", "fsdp/decoder-nano/weak",
    "pipeline/decoder-nano/weak", "compressed:topk/decoder-nano/weak",
}  # fmt: skip


def suites(folder: Path, num_gpus: int, chosen: str, **plant: str) -> tuple[int, dict[str, Any]]:
    """Run the suites, and return the exit status and the record's document."""
    here = {
        **environment(folder / "nvml", num_gpus),
        **HEALTHY, "STRICT_GFLOPS": RATES[num_gpus], **plant,
    }  # fmt: skip
    for option in ("SCALEPROOF_NO_FABRIC", "SCALEPROOF_NO_TIMELINE"):
        here.pop(option, None)
    here["PYTHONPATH"] = os.pathsep.join([here["PYTHONPATH"], str(ROOT)])
    command = [sys.executable, "-m", "pytest", "suites/", "--gpus", str(num_gpus), "--no-timeline"]
    command += ["-p", "no:cacheprovider", "--results", str(folder / "results")]
    command += ["-k", chosen] if chosen else []
    done = subprocess.run(command, env=here, cwd=ROOT, capture_output=True, text=True, check=False)
    (folder / "screen.txt").write_text(done.stdout + done.stderr)
    (record,) = (folder / "results").glob("runs/*/*/record.json")
    return done.returncode, json.loads(record.read_text())


def statuses(record: dict[str, Any]) -> dict[str, str]:
    """Return the status of each requirement on GPUs, by family."""
    return {
        verdict["case"].partition("@")[0]: verdict["status"]
        for verdict in record["verdicts"]
        if verdict["rule"] and "cpu" not in verdict["case"] and "paced" not in verdict["case"]
    }


@pytest.mark.full
@pytest.mark.parametrize("num_gpus", [2, 4, 8])
def test_healthy_devices_pass_in_every_family(num_gpus: int, tmp_path: Path) -> None:
    """The model has six blocks, so that a pipeline of eight stages is skipped, with a reason."""
    status, record = suites(tmp_path, num_gpus, "")
    found = statuses(record)
    skipped = {"pipeline/decoder-nano/weak"} if num_gpus > 6 else set()
    assert {family for family, verdict in found.items() if verdict == "SKIP"} == skipped, found
    assert {family for family, verdict in found.items() if verdict == "PASS"} == FAMILIES - skipped
    assert status == 0, (tmp_path / "screen.txt").read_text()


@pytest.mark.full
@pytest.mark.parametrize("num_gpus", [2, 4])
def test_a_slow_link_fails_and_is_named(num_gpus: int, tmp_path: Path) -> None:
    """Besides the training, the bus bandwidth fails, which names the reason."""
    chosen = "test_ddp and test_weak"
    status, record = suites(tmp_path, num_gpus, chosen, STRICT_LINK_MB_S="0.45")
    assert status == 1
    assert statuses(record) == {"fabric/all_reduce": "FAIL", "ddp/decoder-nano/weak": "FAIL"}


@pytest.mark.full
@pytest.mark.parametrize(("link", "status"), [("pcie-host", 0), ("pcie-peer", 1)])
def test_each_fabric_has_its_own_lowest_bandwidth(link: str, status: int, tmp_path: Path) -> None:
    """A quarter of a slot's 250 MB/s is enough for copies through the host, but not for peers."""
    plant = dict(STRICT_FABRIC=link, STRICT_LANES="1", STRICT_LINK_MB_S="62")
    left, record = suites(tmp_path, 2, "test_ddp and test_weak", **plant)
    assert record["machine"]["fabric"]["link"] == link
    fabric = "PASS" if link == "pcie-host" else "FAIL"
    assert statuses(record) == {"fabric/all_reduce": fabric, "ddp/decoder-nano/weak": "PASS"}
    assert left == status


@pytest.mark.full
def test_verdicts_on_a_shared_gpu_are_inconclusive(tmp_path: Path) -> None:
    """Exit status 10: the verdicts stay open until the device is exclusive."""
    status, record = suites(tmp_path, 2, "test_ddp and test_weak", STRICT_PID="1")
    assert set(statuses(record).values()) == {"INCONCLUSIVE"} and status == 10
