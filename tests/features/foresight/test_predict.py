"""What is foreseen: of the published ladders within stated errors, and never of what is unlike."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from harness.base.errors import SpecError
from harness.features.foresight import terms
from harness.features.foresight.advise import advise
from harness.features.foresight.held_out import Evaluation, evaluate
from harness.features.foresight.infer import calibrate, foresee
from harness.features.foresight.invert import Knob, hold, knee
from harness.features.foresight.learned import Regime, learned
from harness.features.foresight.outlook import outlooks
from harness.features.foresight.predict import Predicted, predict
from harness.features.foresight.published.table import PublishedTable, families_of
from tests.features.foresight.test_table import LADDER, PUBLISHED, table


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluate(
        [t for tables in families_of(PUBLISHED.parent.glob("*.json")).values() for t in tables]
    )


def test_families_are_foreseen_that_taught_nothing(found: Evaluation) -> None:
    """The aims of docs/foresight.md, each family left out of what was learned."""
    whole = found.whole
    assert whole is not None and whole.num >= 130
    assert whole.mean <= 0.030 and whole.p90 <= 0.080
    assert 0.75 <= whole.coverage <= 0.90
    assert whole.has_skill, whole.baselines
    for family in found.families:
        assert family.num < 4 or family.coverage >= 0.70, family
    assert whole.revealed >= 30 and whole.named >= 0.9 * whole.revealed


def test_what_is_refused_would_have_been_wrong(found: Evaluation) -> None:
    """Refusals are no way around hard cases: they are worse than what is said."""
    unsaid = [r.unsaid for p in found.predictions for r in p.refused if r.unsaid is not None]
    off = [abs(o.miss) for o in unsaid if o.miss is not None]
    assert len(off) >= 10 and np.mean(off) > 0.05


def test_schedules_follow_from_one_run_of_1f1b(found: Evaluation) -> None:
    (of,) = (p for p in found.predictions if p.table.id == "zero_bubble_tab4_5")
    off = [abs(o.step_s / o.measured_s - 1) for o in of.predicted if o.measured_s]
    assert len(off) == 44 and np.mean(off) < 0.03 and max(off) < 0.08


def test_a_family_is_left_out_of_what_it_is_predicted_from(found: Evaluation) -> None:
    for prediction in found.predictions:
        assert prediction.table.family not in prediction.taught_by
        assert len(prediction.taught_by) == 19
    family = found.predictions[0].table.family
    assert family in learned().families and family not in learned(family).families


def test_an_outlier_of_its_source_is_not_counted(found: Evaluation) -> None:
    wrong = [o for p in found.predictions for o in p.predicted if o.implausible]
    assert [(o.shape.model.name, o.shape.ranks) for o in wrong] == [("1b", 32)]


def test_losses_sum_to_what_is_lost_and_shares_to_the_step(found: Evaluation) -> None:
    for prediction in found.predictions:
        for predicted in prediction.predicted:
            assert sum(predicted.lost.values()) == pytest.approx(1 - predicted.efficiency, abs=1e-9)
            assert sum(predicted.shares.values()) == pytest.approx(1, abs=1e-9)
            assert predicted.low < predicted.efficiency < predicted.high


def only(tmp_path: Path, **changed: Any) -> Predicted:
    (predicted,) = predict(table(tmp_path, **changed), learned()).predicted
    return predicted


def test_the_size_that_was_measured_has_the_efficiency_it_had(tmp_path: Path) -> None:
    rows = [*LADDER["points"][:2], {"N": 8, "mbs": 4}]
    (predicted,) = predict(table(tmp_path, points=rows), learned()).predicted
    assert predicted.efficiency == pytest.approx(1, abs=0.01)
    known, seen = _ladder(tmp_path)
    again = foresee(known, [seen.points[0].shape])
    assert float(np.exp(again.middle[0])) == pytest.approx(2.0, rel=0.01)


def _ladder(tmp_path: Path) -> tuple[Any, PublishedTable]:
    read_ = table(tmp_path)
    taken = [p for p in read_.points if p.calibrates]
    shapes, steps = [p.shape for p in taken], [p.step_s or 0.0 for p in taken]
    return calibrate(read_.fabric, shapes, steps, [shapes[0].model]), read_


def test_units_do_not_matter(tmp_path: Path) -> None:
    rows = deepcopy(LADDER["points"])
    for row in rows:
        row["tokens_per_s_per_gpu"] = 4 * 2048 / row.pop("step_s")
    plain = only(tmp_path)
    hardware = {
        "gpu": "A100-80GB",
        "gpus_per_node": 8,
        "inter_Gbit_s_per_node": 1600,
        "intra_Tbps_per_gpu": 2.4,
    }
    other = only(tmp_path, points=rows, hardware=hardware)
    for of in ("efficiency", "low", "high", "measured", "step_s"):
        assert getattr(other, of) == pytest.approx(getattr(plain, of), rel=1e-6), of


@given(times=st.floats(1.0, 50.0))
@settings(max_examples=15, deadline=None)
def test_a_faster_network_is_never_foreseen_to_lose(times: float, tmp_path_factory: Any) -> None:
    known, read_ = _ladder(tmp_path_factory.mktemp("t"))
    target = replace(read_.points[-1].shape, ranks=1024)
    base = read_.points[0].shape
    low, high = (
        next(h.best for h in hold(known_, base, target, 2.0) if h.knob is Knob.MICROS)
        for known_ in (known, replace(known, fabric=replace(
            known.fabric, inter_bytes_per_s=known.fabric.inter_bytes_per_s * times)))
    )  # fmt: skip
    assert high >= low - 1e-9


def test_other_software_and_models_are_refused(tmp_path: Path) -> None:
    rows = [{**r, "software": "24.01"} for r in LADDER["points"]]
    rows.append({"N": 64, "mbs": 4, "step_s": 2.2, "software": "24.07"})
    rows.append({"N": 64, "mbs": 4, "step_s": 9.0, "software": "24.01", "params": 3e10})
    found = predict(table(tmp_path, points=rows), learned())
    assert [o.shape.ranks for o in found.predicted] == [32]
    assert [r.why for r in found.refused] == [
        "no calibrated point has model 7B", "no calibrated point has software 24.07",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "other"),
    [
        ("gpu", "H100", "H200"), ("gpu", "A100", "A800"), ("gpu", "B200", "B300"),
        ("gpu", "MI300X", "MI355X"), ("precision", "fp8", "fp4"), ("precision", "fp8", "fp16"),
        ("version", "v5.0", "v6.0"), ("image", "ngc26.04", "ngc25.04"), ("driver", "r570", "r580"),
        ("cuda", "cu121", "cu130"), ("nccl", "v2.21", "v3.21"), ("round", "v5p", "v6e"),
        ("strategy", "FSDP8 fp8", "FSDP16 fp4"), ("strategy", "ZeRO-2", "ZeRO-3"),
        ("strategy", "zero1", "zero2"), ("strategy", "FSDP4", "DDP8"),
        ("strategy", "TP8 ring", "TP8 tree"), ("strategy", "1F1B v2", "1F1B v3"),
        ("strategy", "TP4 DP8", "TP8 DP8"), ("strategy", "EP8 DP8", "EP16 DP8"),
        ("strategy", "PP4", "PP8"), ("torch", "2.8", "2.11"), ("torch", "2.1", "2.10"),
        ("fabric", "NDR 400", "HDR 200"), ("fabric", "RoCE", "InfiniBand"), ("ep", 8, 16),
        ("container", "24.09", "24.04"), ("compile", True, False), ("gpu", "H100 SXM", "H100 PCIe"),
        ("optimizer", "adam", "adam8bit"), ("rocm", "6.2", "6.4"), ("nic", "cx7", "cx8"),
    ],
)  # fmt: skip
def test_what_differs_by_a_digit_is_another_configuration(
    tmp_path: Path, field: str, value: object, other: object
) -> None:
    rows = [{**r, field: value} for r in LADDER["points"]]
    rows.append({"N": 64, "mbs": 4, "step_s": 2.2, field: other})
    made = predict(table(tmp_path, points=rows), learned())
    assert [o.shape.ranks for o in made.predicted] == [32]
    (refused,) = made.refused
    assert refused.why.startswith(f"no calibrated point has {field} ")


@pytest.mark.parametrize(
    ("message", "other"),
    [("FSDP8 fp8", "FSDP16 fp8"), ("TP8 DP4", "tp8 dp16"), ("DDP", "ddp"), ("FSDP_8", "fsdp_64"),
     ("PP4 DP8 1F1B", "PP4 DP16 1F1B"), ("HSDP 8", "HSDP 32")],
)  # fmt: skip
def test_sizes_in_a_strategy_s_words_are_no_configuration(
    tmp_path: Path, message: str, other: str
) -> None:
    rows = [{**r, "strategy": message} for r in LADDER["points"]]
    rows.append({"N": 64, "mbs": 4, "step_s": 2.2, "strategy": other})
    assert predict(table(tmp_path, points=rows), learned()).refused == ()


@pytest.mark.parametrize(
    ("field", "value", "other"),
    [
        ("gpu", "H100-SXM5-80GB", "h100 sxm5 80gb"), ("precision", "BF16", "bf16 "), ("ep", 8, 8.0),
        ("compile", True, "true"), ("strategy", "Distributed_optimizer", "distributed optimizer"),
        ("note", "first", "second"),
    ],
)  # fmt: skip
def test_what_is_written_another_way_is_no_other_configuration(
    tmp_path: Path, field: str, value: object, other: object
) -> None:
    rows = [{**r, field: value} for r in LADDER["points"]]
    rows.append({"N": 64, "mbs": 4, "step_s": 2.2, field: other})
    assert predict(table(tmp_path, points=rows), learned()).refused == ()


def test_another_owner_is_named(tmp_path: Path) -> None:
    rows = [{**r, "submitter": "A"} for r in LADDER["points"]]
    rows.append({"N": 64, "mbs": 4, "step_s": 2.2, "submitter": "B"})
    read_ = table(tmp_path, points=rows)
    assert any("more than one submitter (A, B)" in note for note in read_.notes)


def test_a_limiter_that_nothing_measured_is_said_and_widens(tmp_path: Path) -> None:
    """One node alone is calibrated: nothing speaks of a network of 1 GB/s."""
    slow = {**LADDER["hardware"], "inter_GBps_per_gpu": 1}
    rows = [{"N": n, "mbs": 4, "step_s": 2.0 + n / 1000} for n in (4, 8, 64)]
    unseen = only(tmp_path, hardware=slow, points=rows, calibrate_on=[4, 8])
    seen = only(tmp_path, points=rows, calibrate_on=[4, 8])
    assert unseen.regime is Regime.UNSEEN and seen.regime is Regime.RESIZED
    assert (unseen.high - unseen.low) > 2 * (seen.high - seen.low)
    assert unseen.limiter in ("exchange bytes", "exchange latency")


def test_what_would_hold_an_efficiency_does(tmp_path: Path) -> None:
    known, read_ = _ladder(tmp_path)
    base = read_.points[0].shape
    target = replace(base, ranks=1024, micro_batch=1.0)
    held = {h.knob: h for h in hold(known, base, target, 0.9)}
    times = held[Knob.BATCH].times
    assert times is not None and times > 1
    enough = replace(target, micro_batch=times)
    short = replace(target, micro_batch=times * 0.9)
    again = [next(iter(hold(known, base, s, 0.9))) for s in (enough, short)]
    assert again[0].times == pytest.approx(1, abs=0.01) and (again[1].times or 99) > 1.01
    out_of_reach = {h.knob: h for h in hold(known, base, target, 0.999)}[Knob.BANDWIDTH]
    assert out_of_reach.times is None and out_of_reach.best < 0.999


def test_a_sharded_ladder_meets_the_latency_of_its_rings(tmp_path: Path) -> None:
    known, read_ = _ladder(tmp_path)
    small = replace(read_.points[0].shape, micro_batch=1.0)
    found = knee(known, small)
    assert found is not None and found.term == "exchange latency"
    largest = max(s.ranks for s in known.shapes)
    assert largest < found.ranks <= 65536

    def most(ranks: int) -> str:
        parts = terms.seconds(known.facts([replace(small, ranks=ranks)]), known.mode[None, :])
        rest = {t: v[0, 0] for t, v in parts.items() if t not in ("compute", "unexplained")}
        return max(rest, key=rest.__getitem__)

    assert most(found.ranks) == found.term != most(found.ranks // 2)


def test_advice_is_affordable_and_better_than_doubling(tmp_path: Path) -> None:
    known, read_ = _ladder(tmp_path)
    target = replace(read_.points[0].shape, ranks=1024)
    advice = advise(known, target)
    assert advice.after_sd <= advice.doubling_sd < advice.before_sd
    assert advice.shape.ranks < target.ranks and advice.cost_s <= 1.01 * 32 * 2.1


def test_an_outlook_keeps_the_batch_that_the_ladder_keeps(tmp_path: Path) -> None:
    (weak,) = outlooks(table(tmp_path), 256, 0.9)
    assert weak.predicted.shape.micro_batch == 4
    rows = [{"N": n, "global_batch": 256, "mbs": 4, "step_s": 64 / n} for n in (8, 16, 32)]
    (strong,) = outlooks(table(tmp_path, points=rows), 64, 0.9)
    assert strong.predicted.shape.samples == pytest.approx(256)
    rows = [{"N": n, "tp": 8, "mbs": 4, "step_s": 1} for n in (8, 16)]
    with pytest.raises(SpecError, match="multiple of tp"):
        outlooks(table(tmp_path, points=rows), 100, 0.9)


def test_a_model_with_adapters_is_not_taken_for_one_whose_parameters_train(tmp_path: Path) -> None:
    """70B of which few train: their exchange would explain all of a step (Llama 2 LoRA)."""
    seen = only(tmp_path, strategy="LoRA, distributed optimizer")
    assert seen.regime is Regime.UNSEEN and "params" in seen.caution
    model = {**LADDER["model"], "trainable_params": 4e7}
    seen = only(tmp_path, strategy="LoRA, distributed optimizer", model=model)
    assert not seen.caution and seen.regime is not Regime.UNSEEN


def test_parts_of_a_sequence_that_no_size_was_cut_into() -> None:
    """70B with adapters, calibrated with whole sequences: 4 and 8 ranks to one cost what keys and
    values take between them. Without that exchange it is 9 points off.
    """
    family = "Llama2 70B LoRA, B200 and GB200"
    known = learned(leaving_out=family)
    tables = families_of([PUBLISHED.with_name("ladders.json")])[family]
    sizes = [size for table in tables for size in predict(table, known).predicted]
    errors = [abs(size.efficiency - size.measured) for size in sizes if size.measured is not None]
    assert len(errors) >= 5 and max(errors) < 0.04


def test_sizes_of_adapters_follow_from_the_files_that_the_tables_name() -> None:
    """Llama 2 70B with rank 16 on ``qkv_proj`` and ``o_proj``, counted from the sizes in MLCommons'
    config.json and run_llama_70B_scrolls_r16.sh.
    """
    hidden, layers, inner, words, rank = 8192, 80, 28672, 32000, 16
    keys = hidden // 64 * 8
    fused = hidden + 2 * keys
    layer = hidden * fused + hidden * hidden + 3 * hidden * inner + 2 * hidden
    frozen = 2 * words * hidden + layers * layer + hidden
    trained = layers * rank * ((hidden + fused) + (hidden + hidden))
    published = json.loads(PUBLISHED.with_name("ladders.json").read_text())["tables"]
    adapters = [t for t in published if "trainable_params" in t["model"]]
    assert len(adapters) == 3
    for table_of_adapters in adapters:
        model = table_of_adapters["model"]
        assert model["trainable_params"] == trained and model["params"] == frozen + trained
        assert (model["layers"], model["hidden"], model["kv_hidden"]) == (layers, hidden, keys)
        assert "run_llama_70B_scrolls_r16.sh" in table_of_adapters["source"]


def test_what_links_cannot_have_carried_is_asked_about(tmp_path: Path) -> None:
    """A step of 20 ms, in which 7B gradients would have to cross links of 1 GB/s."""
    slow = {**LADDER["hardware"], "inter_GBps_per_gpu": 1}
    rows = [{**row, "step_s": row["step_s"] / 100} for row in LADDER["points"]]
    made = predict(table(tmp_path, hardware=slow, points=rows), learned())
    assert not made.predicted and made.refused[0].unsaid is not None
    assert "state which optimizer" in made.refused[0].why
