"""The order of the plans of a long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.cases import Catalogue, Device, Mode, Plan, Site
from harness.cases.recipes import ladder
from harness.cases.rules import Threshold, load_thresholds
from harness.cases.targets import normalise
from harness.interface.cli.main import main
from harness.measure import orders
from harness.record import Purpose
from harness.record.store import load

KNOWN = Catalogue()
RULE = """
[[rule]]
name = "any"
case = "*"
mode = "weak"
baseline = "plain"
metric = "efficiency"
at_least = 0.1
source = "requirement"
"""


def plan(name: str, ranks: int = 2) -> Plan:
    return normalise(ladder(site().case(name, Mode.WEAK), (ranks,), baselines=("plain",)), KNOWN)


def site() -> Site:
    return Site(device=Device.CPU, backend="gloo", nodes=(2,))


@pytest.fixture
def rules(tmp_path: Path) -> tuple[Threshold, ...]:
    file = tmp_path / "rules.toml"
    file.write_text(RULE)
    return tuple(load_thresholds(file, KNOWN))


def test_dense_training_comes_first_and_simulated_compute_last() -> None:
    plans = [plan(n) for n in ("compressed:topk/mlp-nano", "ddp/paced-small", "ddp/mlp-nano")]
    codec, stand_in, dense = plans
    assert orders.ordered(plans) == [dense, codec, stand_in]


@pytest.mark.full
def test_the_first_plan_is_measured_before_others_begin_and_the_run_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(orders, "LONG_S", 0.0)
    (tmp_path / "rules.toml").write_text(RULE)
    (tmp_path / "test_two.py").write_text(
        "from harness import Mode, Protocol, ladder, scaling\n"
        "def two(site):\n"
        "    short = Protocol(steps=8, cut=2, max_blocks=2)\n"
        "    names = ('fsdp/mlp-nano', 'ddp/mlp-nano')\n"
        "    cases = [site.case(name, Mode.WEAK) for name in names]\n"
        "    return [ladder(c, (2,), baselines=('plain',), protocol=short) for c in cases]\n"
        "@scaling(two)\n"
        "def test_two(verdict): pass\n"
    )
    options = ["--results", str(tmp_path / "results"), "--cpus", "2", "--no-timeline"]
    rules = ["--scaling-thresholds", str(tmp_path / "rules.toml")]
    pytest.main([str(tmp_path), "-q", *options, *rules])
    (folder,) = (tmp_path / "results" / "runs").glob("*/*")
    record = load(folder)
    order = [(x.plan, x.purpose) for x in record.launches]
    first = order[0][0]
    timed = [i for i, (p, purpose) in enumerate(order) if (p, purpose) == (first, Purpose.TIMED)]
    others = [i for i, (p, _) in enumerate(order) if p != first]
    assert timed[:4] and max(timed[:4]) < min(others), "others began before its first blocks ended"
    assert "so far" in capfd.readouterr().out
    assert main(["verify", str(folder)]) == 0
