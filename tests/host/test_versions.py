"""Minimum versions: older ones are reported, unknown ones are skipped and never pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.host import doctor
from harness.host.admission import Level
from harness.host.doctor import Component, Standing


def of(**fields: object) -> Component:
    return Component(**{"name": "driver", "why": "", "source": "", **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("component", "here", "standing"),
    [
        (of(least="2.28.2"), "2.28.2", Standing.OK),
        (of(least="2.28.2"), "2.9.9", Standing.BELOW),
        (of(least="2.28.2"), "2.28.10", Standing.OK),
        (of(least="2.11"), "2.13.0+cpu", Standing.OK),
        (of(least="2.28.2"), "", Standing.SKIP),
        (of(least="2.28.2"), "unknown", Standing.SKIP),
        (of(trains=("570.211.01", "580.159.03")), "580.126.09", Standing.BELOW),
        (of(trains=("570.211.01", "580.159.03")), "580.159.03", Standing.OK),
        (of(trains=("570.211.01", "580.159.03")), "575.57.08", Standing.SKIP),
    ],
)
def test_versions_are_compared_with_their_minimum(
    component: Component, here: str, standing: Standing
) -> None:
    assert doctor.compare_version(component, here).standing is standing


def test_every_line_of_the_table_has_a_source_and_a_bound() -> None:
    rows = doctor.minimum_versions()
    assert {"driver", "nccl", "connectx firmware", "torch"} <= {row.name for row in rows}
    assert all(row.source and row.why and bool(row.least) != bool(row.trains) for row in rows)


def test_doctor_names_old_and_skipped_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = doctor._versions()
    assert finding.level is Level.OK and "torch" in finding.text
    monkeypatch.setattr(doctor, "_here", lambda name: "1.0" if name == "torch" else "")
    finding = doctor._versions()
    assert finding.level is Level.WARN
    assert "torch 1.0 is below 2.11" in finding.text and "SKIP: nccl" in finding.text


def test_a_missing_topology_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "topo.xml"
    monkeypatch.setenv("NCCL_TOPO_FILE", str(path))
    assert doctor._topology_file().level is Level.WARN
    path.write_text("<system/>")
    assert doctor._topology_file().level is Level.OK and "sha256" in doctor._topology_file().text
    monkeypatch.delenv("NCCL_TOPO_FILE")
    assert doctor._topology_file().level is Level.OK
