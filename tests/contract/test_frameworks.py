"""Other frameworks train as one device would, send the expected bytes, and run the stated mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.cases import Catalogue, Device, Precision, Site
from harness.launch.fleet import Fleet
from harness.record import Purpose
from harness.training.agent.answers import _installed

KNOWN = Catalogue().entries["strategies"]
FRAMEWORKS = [name for name, entry in KNOWN.items() if entry.supports.packages]
CASES = [
    ("deepspeed", {}),
    ("deepspeed", {"deepspeed.stage": 2}),
    ("deepspeed", {"deepspeed.stage": 3}),
    ("accelerate", {}),
    ("lightning_fabric", {}),
    ("lightning_fabric", {"lightning_fabric.sharded": True}),
    ("ray_train", {}),
    ("megatron", {}),
    ("megatron", {"megatron.overlap": True, "megatron.bucket_elements": 50_000}),
]


def present(strategy: str) -> bool:
    """Return whether all packages of a strategy are installed."""
    return all(_installed(package) for package in KNOWN[strategy].supports.packages)


def needs(strategy: str) -> None:
    if not present(strategy):
        pytest.skip(f"needs {KNOWN[strategy].supports.packages}: tox -e frameworks")


@pytest.mark.parametrize("accumulate", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize(("strategy", "knobs"), CASES)
def test_a_framework_trains_as_one_device_would(
    launch: Any, strategy: str, knobs: dict[str, Any], accumulate: int
) -> None:
    needs(strategy)
    world = launch(f"{strategy}/decoder-nano", 2, knobs=knobs, accumulate=accumulate)
    assert world.cause is None, world.ends
    assert world.failed == []
    assert len(world.ranks[0].checks) > 10
    expected = world.described.expected
    ran = world.ranks[0].ran
    assert ran.module == expected.module
    assert expected.placements in ((), ran.placements)


@pytest.mark.parametrize(("strategy", "knobs"), CASES)
def test_a_timed_framework_has_the_losses_of_ddp(
    launch: Any, strategy: str, knobs: dict[str, Any]
) -> None:
    needs(strategy)
    world = launch(f"{strategy}/mlp-nano", 2, Purpose.TIMED, knobs=knobs)
    assert world.cause is None, world.ends
    ours = launch("ddp/mlp-nano", 2, Purpose.TIMED).ranks[0]
    theirs = world.ranks[0]
    assert (theirs.first_loss, theirs.last_loss) == (ours.first_loss, ours.last_loss)


@pytest.mark.full
@pytest.mark.parametrize(
    "precision", [Precision.BF16, pytest.param(Precision.AUTOCAST, marks=pytest.mark.full)]
)
@pytest.mark.parametrize(("strategy", "knobs"), CASES)
def test_a_framework_trains_in_reduced_precision(
    launch: Any, strategy: str, knobs: dict[str, Any], precision: Precision
) -> None:
    needs(strategy)
    world = launch(f"{strategy}/decoder-nano", 2, knobs=knobs, precision=precision)
    assert world.cause is None, world.ends
    assert world.failed == []


@pytest.mark.full
@pytest.mark.parametrize(("strategy", "knobs"), CASES)
def test_a_framework_trains_on_four_ranks(
    launch: Any, strategy: str, knobs: dict[str, Any]
) -> None:
    needs(strategy)
    world = launch(f"{strategy}/mlp-nano", 4, knobs=knobs)
    assert world.cause is None, world.ends
    assert world.failed == []


#: Frameworks that silently do less than requested, and the correctness check that detects it.
DOWNGRADES = {
    "accelerate_alone": ("accelerate", "step1_gradient", {}),
    "accelerate_fsdp_is_ddp": ("accelerate", "bytes.all_gather", {}),
    "fabric_default_sizes": ("lightning_fabric", "step1_gradient", {}),
    "zero3_persists": ("deepspeed", "bytes.all_gather", {}),
    "stage_1_for_2": ("deepspeed", "bytes.all_reduce", {"accumulate": 2}),
    "clips_unasked": ("deepspeed", "parameters_after_4", {}),
}


@pytest.mark.parametrize("bug", DOWNGRADES)
def test_a_downgrade_is_caught(launch: Any, bug: str) -> None:
    strategy, check, fields = DOWNGRADES[bug]
    needs(strategy)
    knobs = {"mutant_framework.bug": bug}
    world = launch("mutant_framework/decoder-nano", 2, knobs=knobs, **fields)
    assert world.cause is None, world.ends
    assert any(c.name.endswith(check) for c in world.failed), world.failed


def test_a_missing_package_is_a_skip_with_the_command_to_install_it(
    agent: Fleet, tmp_path: Path
) -> None:
    """A strategy whose package agents lack is a SKIP with the command that installs it."""
    (tmp_path / "absent.py").write_text(
        Path(str(KNOWN["ddp"].path))
        .read_text()
        .replace("SUPPORTS = dict(", 'SUPPORTS = dict(packages=("no_such_package",), ')
    )
    catalogue = Catalogue([tmp_path])
    site = Site(device=Device.CPU, backend="gloo", nodes=(2,))
    case = catalogue.normalise(site.case("absent/mlp-nano"))
    [described] = agent.describe([(case, catalogue.files(case))])
    assert "pip install no_such_package" in described.unsupported
    assert not described.error
