"""Hardware for plans is given by short names, files or runs; mistakes in them are reported."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from harness.base.errors import ConfigError, SpecError
from harness.host import devices, machine


def test_short_names() -> None:
    parsed, many = devices.parse("8xh100"), devices.parse("64x8xH200")
    assert (parsed.nodes, parsed.machine.gpu, parsed.machine.gpu_memory_gib) == (
        (8,), "NVIDIA H100 80GB HBM3", 80,
    )  # fmt: skip
    assert many.nodes == (8,) * 64 and many.slowest == many.network_bytes == 50e9
    assert parsed.slowest == parsed.link_bytes == 450e9
    assert parsed.machine.hardware_class.startswith("8x-nvidia-h100-80gb-hbm3-")


@pytest.mark.parametrize("sheet", devices.sheets().values(), ids=list(devices.sheets()))
def test_every_data_sheet_has_a_peak(sheet: devices.Sheet) -> None:
    """Without a peak, steps would be estimated with the rate of another device."""
    assert devices.named(sheet.gpu) is sheet
    assert devices.peaks(sheet.gpu)["float16"] > devices.peaks(sheet.gpu).get("float32", 0.0)


@pytest.mark.parametrize(
    ("words", "short"),
    {
        "H100 SXM5 80GB": "h100", "8xH100": "h100", "8x NVIDIA H100 80GB HBM3": "h100", "Hopper": "h100",
        "H100 NVLink": "h100", "H100 PCIe": "h100-pcie", "H100 NVL": "h100-nvl", "H800": "h800",
        "H200": "h200", "H200-141GB": "h200", "NVIDIA H20": "h20", "GH200": "gh200",
        "A100-80GB": "a100", "A100 PCIe 80GB": "a100-pcie", "A100 40 GB PCIe": "a100-pcie-40", "A100 40GB": "a100-40",
        "A800-SXM4-80GB": "a800", "DGX B200": "b200", "GB200 NVL72": "gb200", "B300": "b300",
        "Tesla V100-SXM2-32GB": "v100", "P100": "p100", "L40S": "l40s", "L4": "l4",
    }.items(),
)  # fmt: skip
def test_a_device_is_recognised_by_usual_names(words: str, short: str) -> None:
    assert devices.described(words) is devices.sheets()[short]


@pytest.mark.parametrize("words", ["", "MI400", "TPU v4", "a 100 machines", "L4000"])
def test_unknown_names_are_no_device(words: str) -> None:
    assert devices.described(words) is None


@pytest.mark.parametrize(
    "text", ["h100", "8xh101", "0x8xh100", "8 x h100", "-1xh100", "nofile.toml"]
)
def test_unknown_hardware_is_one_clear_error(text: str) -> None:
    with pytest.raises(SpecError, match=f"--on {text}") as caught:
        devices.parse(text)
    assert caught.value.fix == "--on 8xh100"


def test_a_file_describes_unknown_hardware(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[[hardware]]\ngpu = "NVIDIA X1"\ngpus = 4\nmemory_gib = 64\nlink_gb_s = 100\n')
    parsed = devices.parse(str(path))
    assert (parsed.name, parsed.nodes, parsed.link_bytes) == ("mine", (4,), 100e9)
    path.write_text('[[hardware]]\ngpu = "h200"\ngpus = 8\nnodes = 4\nnetwork_gb_s = 25\n')
    parsed = devices.parse(str(path))
    assert parsed.machine.gpu_memory_gib == 140 and parsed.slowest == 25e9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('gpu = "X1"\ngpus = 8\n', "links of 'X1' are unknown"),
        ('gpu = "h100"\ngpus = 0\n', "gpus = 0 is not above 0"),
        ('gpu = "h100"\ngpu_count = 8\n', "unknown key 'gpu_count'"),
        ('gpu = "h100"\ngpus = "8"\n', "expected a int"),
    ],
)
def test_a_mistake_in_a_hardware_file_is_reported(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"[[hardware]]\n{text}")
    with pytest.raises(ConfigError, match=says):
        devices.parse(str(path))


def test_the_hardware_of_a_run_must_have_known_links() -> None:
    here = dataclasses.replace(machine.detect(), gpu="NVIDIA H200", num_gpus=8)
    assert devices.of_machine("run", here, (8, 8)).nodes == (8, 8)
    with pytest.raises(SpecError, match="the links of .* are unknown"):
        devices.of_machine("run", machine.detect(), (2,))


def test_a_plan_for_a_million_gpus_is_refused() -> None:
    with pytest.raises(SpecError, match="1,000,000 GPUs"):
        devices.parse("1000000xh100")
    with pytest.raises(SpecError, match="160,000 GPUs"):
        devices.parse("20000x8xh100")
