"""Comparing machines: which cases are compared, which are left out, and which are only shown."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from harness.analysis.compare import Reading
from harness.base.documents import from_doc, to_doc
from harness.base.errors import SpecError
from harness.cases.plan import Plan
from harness.features.machines import machines_table as hardware
from harness.features.machines.machines import HardwareComparison, compare_hardware
from harness.interface.cli.main import main
from harness.record import Ceiling, RunRecord
from harness.record.store import load, save
from tests.editing import even

Edit = Callable[[Any], None]


def edited(run: RunRecord, *edits: Edit) -> RunRecord:
    doc = json.loads(json.dumps(to_doc(run)))
    for edit in edits:
        edit(doc)
    return from_doc(RunRecord, doc)


def quiet(doc: Any) -> None:
    even(doc, 0.9)


def faster(factor: float) -> Edit:
    def edit(doc: Any) -> None:
        for x in doc["launches"]:
            for r in x["ranks"]:
                r["window_s"] /= factor

    return edit


def without(arm: str) -> Edit:
    def edit(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["arm"] != arm]

    return edit


def of(comparison: HardwareComparison, side: str, world: str, strategy: str = "ddp") -> Any:
    return next(
        e for e in comparison.entries
        if (e.side, e.case.world, e.case.strategy) == (side, world, strategy)
    )  # fmt: skip


def test_machines_are_compared_with_the_first(sample_run: RunRecord) -> None:
    runs = [edited(sample_run, quiet, faster(f)) for f in (1.0, 1.0, 1.3)]
    comparison = compare_hardware(runs, "throughput")
    assert [s.name for s in comparison.sides] == ["A", "B", "C"]
    assert {e.reading for e in comparison.entries if e.side == "B"} == {Reading.SAME}
    assert {e.reading for e in comparison.entries if e.side == "C"} == {Reading.FASTER}
    assert [m.mean for m in comparison.means] == pytest.approx([1.0, 1.3], rel=0.001)
    assert comparison.differs == () and comparison.missing == ()
    assert "(C) is 1.3" in hardware.headline(comparison)
    words = [line for line in hardware.lines(comparison, 100) if "2cpu  B" in line]
    assert words and all("no difference" in line for line in words)


def test_the_mean_covers_only_cases_of_all_machines(sample_run: RunRecord) -> None:
    """C is 2x faster in the case that B lacks; this case is not in the mean, which is reported."""
    b = edited(sample_run, quiet, without("@2"))
    c = edited(sample_run, quiet, faster(2.0))
    comparison = compare_hardware([edited(sample_run, quiet), b, c], "throughput")
    assert comparison.num_common == 2
    assert comparison.missing == ("ddp/decoder-nano/weak@2cpu: not measured on B",)
    assert any("not in the mean" in text for text in hardware.notes(comparison))


def test_machines_are_compared_with_the_sum_of_their_devices(
    sample_run: RunRecord,
) -> None:
    comparison = compare_hardware([edited(sample_run, quiet), edited(sample_run, quiet, faster(2))],
                             "throughput")  # fmt: skip
    a, b = comparison.totals
    assert (a.devices, b.devices) == (2, 2)
    assert a.together == pytest.approx(0.9 * 2 * a.alone, rel=0.01)
    assert b.share == pytest.approx(0.9, rel=0.01)
    assert b.ratio == pytest.approx(2.0) and b.ratio_alone == pytest.approx(2.0)


def test_attained_flops_energy_prices_and_epochs_are_computed(sample_run: RunRecord) -> None:
    reached = to_doc(Ceiling(dtype="float32", matmul_flops=50e9, copy_bps=10e9))

    def told(doc: Any) -> None:
        for x in doc["launches"]:
            if x["purpose"] == "gate" and x["arm"] == "plain":
                x["ranks"][0]["ceiling"] = reached
        for x in doc["launches"]:
            x["gpus"] = [
                dict(index=0, name="X", sm_clock_mhz=None, power_w=None, temp_c=None, throttle=[],
                     energy_j=100.0)
            ]  # fmt: skip
        doc["settings"]["nodes"] = [2]

    def epoch(doc: Any) -> None:
        (plan,) = doc["plans"]
        old = {x["plan"] for x in doc["launches"]} - {""}
        plan["epoch_samples"] = 10_000
        new = from_doc(Plan, plan).hash
        for entry in (*doc["launches"], *doc["blocks"]):
            entry["plan"] = new if entry["plan"] in old else entry["plan"]
        doc["windows"] = {new: next(iter(doc["windows"].values()))}

    run = edited(sample_run, quiet, told, epoch)
    comparison = compare_hardware([run, run], "throughput", [7.2, None])
    entry = of(comparison, "A", "2cpu")
    row = 1 / entry.throughput
    assert entry.price == pytest.approx(7.2 / 3600 * row * 1e6)
    assert of(comparison, "A", "1cpu").price == pytest.approx(
        3.6 / 3600 / of(comparison, "A", "1cpu").throughput * 1e6
    ), "one of two devices must cost half"
    assert of(comparison, "B", "2cpu").price is None
    assert entry.epoch_s == pytest.approx(10_000 * row)
    facts = run.described[entry.case.hash].facts
    assert facts is not None
    assert entry.attained == pytest.approx(
        entry.throughput * facts.flops_per_sample / 2 / 50e9, rel=0.01
    )
    assert entry.energy_token_j == pytest.approx(entry.energy_j / facts.tokens_per_sample)
    assert entry.price_tokens == pytest.approx(entry.price / facts.tokens_per_sample)
    assert 0 < entry.headroom < 1
    (mean,) = comparison.means
    assert mean.joule is not None and mean.joule.mean == pytest.approx(1.0)
    assert mean.joule.low is not None and mean.joule.high is not None
    assert mean.joule.low <= 1 <= mean.joule.high
    screen = "\n".join(hardware.lines(comparison, 300))
    assert "price/M tokens" in screen and "epoch" in screen and "50 GFLOP/s" in screen


def test_simulated_cases_of_one_side_are_listed(sample_run: RunRecord) -> None:
    def crowded(doc: Any) -> None:
        doc["machine"]["num_cores"] = 1

    comparison = compare_hardware([sample_run, edited(sample_run, crowded)], "throughput")
    assert comparison.not_compared == ("ddp/decoder-nano/weak@2cpu: a simulated device",)
    assert "num_cores: 2 | 1" in comparison.differs
    with pytest.raises(SpecError, match="only simulated cases"):
        compare_hardware([edited(sample_run, lambda d: [
            a["case"].update(stand_in=["paced"]) for a in d["plans"][0]["arms"]
        ])] * 2, "throughput")  # fmt: skip


@settings(max_examples=20)
@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=3))
def test_the_mean_ratio_equals_the_factor_of_speed(sample: Path, factors: list[float]) -> None:
    run = load(sample)
    runs = [edited(run, quiet, faster(f)) for f in (1.0, *factors)]
    comparison = compare_hardware(runs, "throughput")
    assert [m.mean for m in comparison.means] == pytest.approx(factors, rel=1e-6)


def test_all_output_formats_agree(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "machines", str(sample), str(sample.with_name("ddp-nano-again"))]
    main([*words, "--csv"])
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    main([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert [float(r["throughput"]) for r in rows] == [e["throughput"] for e in document["entries"]]
    main([*words, "--markdown"])
    screen = capsys.readouterr().out
    assert all(f"{e['ratio']:.3f}" in screen for e in document["entries"] if e["ratio"])
    main([*words, "--page", str(tmp_path / "page.html")])
    page = (tmp_path / "page.html").read_text()
    assert all(f'data-v="{e["throughput"]:.6g}"' in page for e in document["entries"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "two or more runs"),
        (["--price", "Z=3"], "the price of an hour"),
        (["--price", "A=dear"], "the price of an hour"),
        (["--price", "A=0"], "the price of an hour"),
    ],
)
def test_an_invalid_comparison_is_reported(
    sample: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(sample)] * (1 if not words else 2)
    assert main(["compare", "machines", *runs, *words]) == 4
    assert message in capsys.readouterr().err


def test_two_copies_of_one_run_are_reported(sample_run: RunRecord) -> None:
    other = edited(sample_run, lambda doc: doc.update(run="another"))
    copied = hardware.lines(compare_hardware([sample_run, other, sample_run], "throughput"), 100)
    assert " A and C are the same run" in copied
    apart = hardware.lines(compare_hardware([sample_run, other], "throughput"), 100)
    assert not any("same run" in line for line in apart)


def test_simulated_cases_are_not_in_a_hardware_comparison(sample_run: RunRecord) -> None:
    doc = to_doc(sample_run)
    for arm in doc["plans"][0]["arms"]:
        arm["case"]["stand_in"] = ["paced"]
    other = from_doc(RunRecord, doc)
    with pytest.raises(SpecError, match="only simulated cases"):
        compare_hardware([other, other], "throughput")


def test_a_purchase_is_compared_per_device_and_per_price(
    sample: Path, sample_run: RunRecord
) -> None:
    """Twice the speed for three times the price is two thirds of the work per price, calculated by
    hand.
    """
    other = edited(sample_run, quiet, faster(2.0))
    comparison = compare_hardware([edited(sample_run, quiet), other], "throughput", [1.0, 3.0])
    (mean,) = comparison.means
    assert mean.mean == pytest.approx(2.0, rel=0.05) and mean.reading is Reading.FASTER
    assert mean.price_factor == pytest.approx(1 / 3) and mean.joule is None
    text = " ".join(hardware.purchase(comparison))
    assert "better" in text and "worse" in text and "the devices do not report energy" in text
    undecided = compare_hardware([sample_run, sample_run], "throughput")
    assert "undecided" in hardware.headline(undecided) or "no difference" in hardware.headline(
        undecided
    )
    assert "(A)" in hardware.headline(undecided), (
        "two machines of the same name must keep their letters"
    )


def test_the_work_per_energy_has_an_interval(sample_run: RunRecord) -> None:
    """Twice the joules per sample is half the samples per joule, calculated by hand."""

    def taking(joules: float) -> Any:
        def edit(doc: Any) -> None:
            for number, x in enumerate(doc["launches"]):
                gpu = dict(index=0, name="X", sm_clock_mhz=None, power_w=None, temp_c=None)
                x["gpus"] = [dict(gpu, throttle=[], energy_j=joules * (1 + number % 2 / 100))]

        return edit

    runs = [edited(sample_run, quiet, taking(joules)) for joules in (100.0, 200.0)]
    (mean,) = compare_hardware(runs, "throughput").means
    assert mean.joule is not None and mean.joule.mean == pytest.approx(0.5, rel=0.01)
    assert mean.joule.low is not None and mean.joule.high is not None
    assert 0.48 < mean.joule.low < 0.5 < mean.joule.high < 0.52
    assert mean.joule.reading is Reading.SLOWER
    assert "for the same energy   0.500 [" in " ".join(
        hardware.purchase(compare_hardware(runs, "throughput"))
    )


def test_a_machine_that_lacks_a_case_does_not_pass(
    sample: Path, sample_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(edited(sample_run, without("@2")), tmp_path)
    monkeypatch.setattr("harness.analysis.verify.unsealed", lambda *a: "")
    gate = ["compare", "machines", "--metric", "throughput", "--fail-on", "worse"]
    assert main([*gate, str(sample), str(tmp_path)]) == 10
    assert main([*gate, str(tmp_path), str(sample)]) == 0
