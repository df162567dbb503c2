"""Mismatches between the GPUs that torch can use and those that NVML sees are reported."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device
from harness.cases.site import resolve
from harness.host import accelerators, doctor, machine, nvml, vendor
from harness.host.accelerators import Accelerators, misfit
from harness.host.admission import Level

HERE = dataclasses.replace(machine.detect(), gpu="NVIDIA H100 80GB HBM3", num_gpus=8)
EIGHT = Accelerators(build="cuda 13.0", names=("NVIDIA H100 80GB HBM3",) * 8)
ENGINES = Catalogue().entries["engines"]


@pytest.mark.parametrize(
    ("seen", "here", "says"),
    [
        (EIGHT, {}, None),
        ({"build": "cpu"}, {}, "torch 2.13.0 is built without CUDA"),
        ({"build": "hip 6.4"}, {}, "torch 2.13.0 is built for ROCm 6.4"),
        ({"error": "RuntimeError: driver too old"}, {}, "cannot use the GPUs: RuntimeError"),
        ({"names": EIGHT.names[:1]}, {}, "NVML sees 8 GPUs, torch 1, but 8 are needed"),
        ({}, {"mig": True}, "MIG slices"),
        ({"as_nvml": False}, {}, "torch and NVML number the GPUs in different orders"),
        ({"foreign": ("NVIDIA B200 (sm_100)",)}, {}, "no kernels for NVIDIA B200 (sm_100)"),
    ],
)
def test_a_mismatch_is_reported_in_one_sentence(
    seen: object, here: dict[str, object], says: str | None
) -> None:
    asked = EIGHT if isinstance(seen, Accelerators) else dataclasses.replace(EIGHT, **seen)  # type: ignore[arg-type]
    sentence = misfit(asked, dataclasses.replace(HERE, **here), "2.13.0", 8)  # type: ignore[arg-type]
    if says is None:
        assert sentence is None
    else:
        assert sentence is not None and says in sentence.what and sentence.fix and sentence.expected


@pytest.mark.parametrize(
    ("build", "driver", "says"),
    [
        ("hip 6.4", False, "ROCm's driver shows no GPU"),
        ("xpu 20250200", False, "torch 2.13.0 is built for Intel GPUs (20250200)"),
        ("cuda 13.0", True, "libnvidia-ml.so.1 does not answer"),
        ("cpu", True, "libnvidia-ml.so.1 does not answer"),
        ("cuda 13.0", False, None),
        ("cpu", False, None),
    ],
)
@pytest.mark.parametrize("gpus", ["8", "auto", None])
def test_gpus_that_nvml_does_not_show_are_never_passed_over(
    build: str,
    driver: bool,
    says: str | None,
    gpus: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With ROCm, XPU or no NVML in a container, runs must not silently use CPU ranks."""
    if driver:
        (tmp_path / "nvidiactl").touch()
    sentence = accelerators.hidden(build, "2.13.0", tmp_path / "nvidiactl")
    assert (sentence is None) if says is None else (sentence is not None and says in sentence.what)
    monkeypatch.setattr(accelerators, "hidden", lambda *_: sentence)
    if sentence is None and gpus is None:
        assert resolve(known_engines=ENGINES).device is Device.CPU
        return
    with pytest.raises(SpecError) as error:
        resolve(gpus=gpus, known_engines=ENGINES)
    assert says is None or says in error.value.what
    assert resolve(cpus=2, known_engines=ENGINES).device is Device.CPU


def test_one_rank_may_use_a_mig_slice() -> None:
    assert misfit(EIGHT, dataclasses.replace(HERE, mig=True), "2.13.0", 1) is None


@pytest.mark.parametrize(
    ("text", "build"),
    [
        ("cuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "cuda 13.0"),
        ("cuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n", "hip 6.4"),
        ("__version__ = '2.13.0'\ncuda: Optional[str] = None\n", "cpu"),
    ],
)
def test_the_build_of_torch_is_read_from_its_version_file(
    text: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(text)
    spec = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    accelerators.torch_build.cache_clear()
    assert accelerators.torch_build() == build
    accelerators.torch_build.cache_clear()


@pytest.fixture
def gpus_without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a driver and eight GPUs with a torch that is built for CPUs."""
    gpu = vendor.Gpu(index=0, name="NVIDIA H100 80GB HBM3", uuid="GPU-1", memory_bytes=1, mig=False)
    monkeypatch.setattr(nvml, "gpus", lambda: (gpu,) * 8)
    monkeypatch.setattr(accelerators, "torch_build", lambda: "cpu")


@pytest.mark.usefixtures("gpus_without_cuda")
def test_a_torch_for_cpus_does_not_use_gpus_and_reports_it() -> None:
    assert resolve(known_engines=ENGINES).device is Device.CPU
    finding = next(f for f in doctor.examine() if f.check == "gpus")
    assert finding.level is Level.WARN and "not used: torch" in finding.text
    with pytest.raises(SpecError, match="--gpus 8: torch .* is built without CUDA"):
        resolve(gpus="8", known_engines=ENGINES)
