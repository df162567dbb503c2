"""The shipped suites' GPU cases, time windows, and rules, checked without a GPU."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.analysis import roofline
from harness.analysis.judging import blockers
from harness.analysis.judging.contrast_data import judged_of
from harness.base.documents import from_doc, to_doc
from harness.base.errors import SpecError
from harness.cases import BoundSource, CaseSpec, Catalogue, Device, Plan, Precision, Site, Threshold
from harness.cases.rules import load_thresholds
from harness.cases.targets import normalise
from harness.host import devices
from harness.host.fabric import LinkClass, MachineFabric, Network
from harness.host.machine import Machine
from harness.interface.cli.main import main
from harness.record import Described
from harness.training.context import load
from harness.training.describe import describe

SUITES = Path(__file__).parents[2] / "suites"
GOLDEN = Path(__file__).parents[1] / "golden"
KNOWN = Catalogue()
RULES = load_thresholds(SUITES / "thresholds.toml", KNOWN)


@pytest.fixture(scope="module")
def recipes() -> Iterator[Any]:
    sys.path.insert(0, str(SUITES))
    import recipes

    yield recipes
    sys.path.remove(str(SUITES))


def families(recipes: Any, site: Site) -> dict[str, list[Plan]]:
    families_read = {
        "ddp": recipes.weak("ddp"),
        "strong": recipes.strong("ddp", global_batch=8),
        "fsdp": recipes.weak("fsdp"),
        "pipeline": recipes.filled(),
        "topk": recipes.topk,
        "175m": recipes.claim_175m_b64,
        "1b3": recipes.claim_1b3_4x8,
    }
    return {
        name: [normalise(p, KNOWN) for p in recipe(site)] for name, recipe in families_read.items()
    }


def judging(plans: list[Plan], machine: Machine) -> dict[str, list[Threshold]]:
    """Return the rules that judge each contrast on a machine, by the contrast's name."""
    return {
        contrast.name: [
            r for r in RULES if r.matches(plan.arm(contrast.subject).case, contrast, machine)
        ]
        for plan in plans
        for contrast in judged_of(plan, RULES, machine)
    }


def on(name: str) -> tuple[Site, Machine]:
    planned = devices.parse(name)
    machine = planned.machine
    site = Site(
        device=Device.CUDA, backend="nccl", nodes=planned.nodes,
        gpu_memory_gib=machine.gpu_memory_gib,
    )  # fmt: skip
    return site, machine


def test_a_claim_judges_only_the_setup_that_it_was_made_for(recipes: Any) -> None:
    """A communication share of 5 % is claimed for two models, not for every compressor and
    pipeline.
    """
    site, machine = on("8xh100")
    for name, plans in families(recipes, site).items():
        found = judging(plans, machine).values()
        claims = {r.name for rules in found for r in rules if "claim" in r.name}
        assert bool(claims) is (name in ("175m", "1b3")), (name, claims)


@pytest.mark.parametrize("name", ["8xh100", "8xa100", "4xrtx4090", "8xl40s", "8xmi300x"])
@pytest.mark.parametrize("family", ["ddp", "fsdp", "pipeline", "topk"])
def test_a_requirement_judges_the_largest_world_of_every_family(
    recipes: Any, family: str, name: str
) -> None:
    """No smaller world is judged unless the site asks for every world size."""
    site, machine = on(name)
    for every, worlds in ((False, {site.world_size}), (True, {2, 4, 8} & set(site.worlds))):
        here = dataclasses.replace(site, every_rung=every)
        (plan,) = families(recipes, here)[family]
        judged = judging([plan], machine)
        cases = {c.name: plan.arm(c.subject).case for c in plan.contrasts}
        ruled = {cases[contrast].world_size for contrast, rules in judged.items() if rules}
        assert ruled == (worlds if family != "topk" else {site.world_size}), (name, every)
        sources = {rule.source for rules in judged.values() for rule in rules}
        assert sources == {BoundSource.REQUIREMENT}


def test_bounds_follow_the_fabric(recipes: Any) -> None:
    """The floor falls with the speed of the fabric, and an unknown fabric has no floor."""
    site, machine = on("8xh100")
    (plan,) = families(recipes, site)["ddp"]
    assert machine.fabric is not None
    bounds = {}
    for link in LinkClass:
        slower = dataclasses.replace(machine, fabric=dataclasses.replace(machine.fabric, link=link))
        found = [rule for rules in judging([plan], slower).values() for rule in rules]
        bounds[link] = [rule.at_least for rule in found]
    classes = (LinkClass.NVSWITCH, LinkClass.NVLINK, LinkClass.PCIE_PEER, LinkClass.PCIE_HOST)
    ordered = [bounds[link] for link in classes]
    assert ordered == sorted(ordered, reverse=True) and {len(found) for found in ordered} == {1}
    assert bounds[LinkClass.UNKNOWN] == [] and bounds[LinkClass.XGMI] == bounds[LinkClass.NVSWITCH]


@pytest.mark.parametrize("hardware", ["3xh100", "6xa100", "16xh100", "5xrtx4090", "16xl40s"])
def test_every_number_of_devices_is_judged_by_a_rule(recipes: Any, hardware: str) -> None:
    """Check every family that is measured with this number of devices."""
    site, machine = on(hardware)
    for family in ("ddp", "fsdp", "pipeline"):
        for plan in families(recipes, site)[family]:
            largest = [rules for case, rules in judging([plan], machine).items()]
            assert any(largest), (hardware, plan.name)


@pytest.mark.parametrize(
    ("network", "gbit_s", "judged"),
    [("infiniband", 3200.0, 2), ("roce", 1600.0, 2), ("infiniband", 800.0, 0), ("ethernet", 400.0, 2),
     ("ethernet", 100.0, 0), ("unknown", 0.0, 0)],
)  # fmt: skip
def test_rules_for_several_nodes_depend_on_their_network(
    recipes: Any, network: str, gbit_s: float, judged: int
) -> None:
    """DDP and FSDP are compared with one node; on a slow or unknown network they are only recorded."""
    site, machine = on("2x8xh100")
    fabric = MachineFabric(link=LinkClass.NVSWITCH, network=Network(network), network_gbit_s=gbit_s)
    there = dataclasses.replace(machine, fabric=fabric)
    plans = [p for s in ("ddp", "fsdp") for p in recipes.across(s)(site)]
    found = [r for p in plans for rules in judging([p], there).values() for r in rules]
    assert len([rule for rule in found if rule.name.startswith("nodes_")]) == judged


def test_a_single_gpu_is_judged(recipes: Any) -> None:
    """Rules bound the cost of DDP's wrapper, the gain from compiled blocks, and the MFU."""
    site, machine = on("1xh100")
    found = families(recipes, site)
    rules = {rule.name for rules in judging(found["ddp"], machine).values() for rule in rules}
    assert rules == {"gpu_wrapped", "gpu_compiled", "gpu_mfu"}
    assert not any(found[name] for name in ("strong", "fsdp", "pipeline", "topk"))


@pytest.mark.parametrize(
    ("name", "most_s"),
    [("8xh100", 1200), ("2x8xh100", 1800), ("8xa100", 1200), ("4xrtx4090", 1200), ("1xh100", 300),
     ("8xmi300x", 1200)],
)  # fmt: skip
@pytest.mark.full
def test_the_default_suites_are_forecast_to_fit_their_time(
    name: str,
    most_s: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The forecast, compared with its golden screen, is 20 minutes, 30 on two nodes, and 5 on one
    GPU.

    Profiles and fabric sweeps are included in this time.
    """
    for variable in ("SCALEPROOF_NO_TIMELINE", "SCALEPROOF_NO_FABRIC"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["run", "plan", str(SUITES), "--on", name, "--cpus", "1"]) == 0
    seen = capsys.readouterr().out
    golden = GOLDEN / f"plan-{name}.txt"
    if os.environ.get("GOLDEN_SCREENS") == "write":
        golden.write_text(seen)
    assert seen == golden.read_text()
    minutes, seconds = re.findall(r"about (\d+):(\d+):", " ".join(seen.split()))[-1]
    assert 60 * int(minutes) + int(seconds) <= most_s


def test_gpu_cases_use_long_windows_and_reduced_precision(recipes: Any) -> None:
    site = Site(device=Device.CUDA, backend="nccl", nodes=(8,))
    for name, plans in families(recipes, site).items():
        for plan in plans:
            assert (plan.protocol.cut_s, plan.protocol.kept_s) == (2.0, 2.0), name
            assert all(a.case.precision is not Precision.FP32 for a in plan.arms), name


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_pipelines_have_enough_micro_batches_at_every_world_size(recipes: Any, ranks: int) -> None:
    for device, backend in ((Device.CPU, "gloo"), (Device.CUDA, "nccl")):
        site = Site(device=device, backend=backend, nodes=(ranks,))
        (plan,) = recipes.filled()(site)
        for arm in plan.arms:
            count = arm.case.knobs.get("pipeline.microbatches", 8)
            assert arm.case.strategy == "single" or count >= 2 * arm.case.world_size


def test_stragglers_on_gpus_are_refused() -> None:
    """A slow CPU core hardly slows a GPU, so the rank would be labelled a straggler but keep up."""
    case = Site(device=Device.CUDA, backend="nccl", nodes=(2,)).case(
        "ddp/mlp-nano", stragglers="1:0.5"
    )
    with pytest.raises(SpecError, match="stragglers slow CPU cores"):
        KNOWN.normalise(case)


CARDS = (
    "8xh100",
    "8xh200",
    "1xh100",
    "8xa100",
    "8xa100-40",
    "8xl40s",
    "8xl4",
    "4xrtx4090",
    "8xb200",
)


@pytest.mark.full
@pytest.mark.parametrize("on", CARDS)
def test_every_default_fits_its_card_and_every_twin_is_accepted(recipes: Any, on: str) -> None:
    """Every world size of a pipeline must fit its card, and every correctness check must accept its
    twin.
    """
    machine, nodes = devices.parse(on).machine, devices.parse(on).nodes
    site = Site(
        device=Device.CUDA, backend="nccl", nodes=nodes, gpu_memory_gib=machine.gpu_memory_gib
    )
    default = ("ddp", "strong", "fsdp", "pipeline", "topk")
    for name, plans in families(recipes, site).items():
        if name not in default:
            continue
        for arm in (arm for plan in plans for arm in plan.arms):
            answer = described(arm.case)
            assert answer.unsupported == answer.error == "", (arm.case.id, answer)
            assert blockers.fits(answer, arm.case, machine), (on, arm.case.id)
            twin = KNOWN.twin(arm.case, answer.twin)
            assert described(twin).unsupported == "", twin.id
            assert twin.size != arm.case.size or "nano" in twin.size, (
                "the correctness check would take minutes at the full size"
            )


@pytest.mark.parametrize("world", [*(pytest.param(n, marks=pytest.mark.full) for n in (1, 8)), 2])
def test_twins_of_parallel_suites_are_accepted(recipes: Any, world: int) -> None:
    """Some nightly cases did not divide: heads over 8 ranks, and a batch of 8 into 16
    micro-batches.
    """
    import parallel

    site = Site(device=Device.CUDA, backend="nccl", nodes=(world,))
    for recipe in (parallel.widths, parallel.schedule_memory, parallel.products):
        for arm in (a for plan in recipe(site) for a in normalise(plan, KNOWN).arms):
            answer = described(arm.case)
            if not answer.unsupported:
                assert described(KNOWN.twin(arm.case, answer.twin)).unsupported == "", arm.case.id


@functools.cache
def _described(document: str) -> Described:
    case = from_doc(CaseSpec, json.loads(document))
    return describe(load(KNOWN.files(case)), case)


def described(case: CaseSpec) -> Described:
    """Return what an agent reports for the case, which it receives as a document. Results are
    cached.
    """
    return _described(json.dumps(to_doc(case), sort_keys=True))


@pytest.mark.full
@pytest.mark.parametrize("on", ["8xh100", "8xa100"])
def test_every_default_case_can_reach_half_of_the_peak_by_its_roofline(
    recipes: Any, on: str
) -> None:
    """A slow step makes scaling efficiency look better, so default cases must be limited by
    compute.
    """
    machine = devices.parse(on).machine
    site = Site(
        device=Device.CUDA, backend="nccl", nodes=(8,), gpu_memory_gib=machine.gpu_memory_gib
    )
    for name in ("ddp", "strong", "fsdp", "pipeline", "topk"):
        (plan,) = families(recipes, site)[name]
        largest = max((a.case for a in plan.arms), key=lambda case: case.world_size)
        most = roofline.mfu_of(described(largest), largest, machine.gpu)
        assert most is not None and most >= 0.5, (on, largest.id, most)


def test_the_compressor_suite_measures_every_compressor(recipes: Any) -> None:
    """It includes every shipped compressor except injected faults and lossless ones."""
    shipped = {
        name
        for name, entry in KNOWN.entries["compressors"].items()
        if not entry.head.get("CONTROL") and entry.head["ERROR_BOUND"] != 0
    }
    for device, backend in ((Device.CPU, "gloo"), (Device.CUDA, "nccl")):
        (plan,) = recipes.codecs(Site(device=device, backend=backend, nodes=(2,)))
        measured = {arm.case.compressor for arm in plan.arms if arm.case.compressor}
        assert measured == shipped
        assert len({(arm.case.model, arm.case.size) for arm in plan.arms}) == 1
