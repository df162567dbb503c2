"""Blockers: a case that was not checked, failed, or ran something else is an ERROR or SKIP, never a
PASS.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from harness.analysis.judging.blockers import gate_failure, not_here
from harness.base.documents import from_doc
from harness.cases import Device, Mode, Plan, Site
from harness.record import Cause, Check, LaunchStatus, Reason, RunRecord, Status
from tests.editing import judged, timed


def test_a_failed_check_is_an_error_whatever_the_speed(sample_run: RunRecord) -> None:
    def wrong(doc: Any) -> None:
        gate = next(x for x in doc["launches"] if x["purpose"] == "gate" and x["arm"] == "@2")
        gate["ranks"][1]["checks"][3]["ok"] = False

    verdicts = judged(sample_run, wrong)
    assert (verdicts["efficiency@2/plain"].status, verdicts["efficiency@2/plain"].reason) == (
        Status.ERROR,
        Reason.INCORRECT,
    )
    assert verdicts["efficiency@1/plain"].status is Status.RECORDED, (
        "the other world size is not affected"
    )


def test_a_correctness_check_without_checks_is_an_error(sample_run: RunRecord) -> None:
    def empty(doc: Any) -> None:
        for x in doc["launches"]:
            if x["purpose"] == "gate":
                for r in x["ranks"]:
                    r["checks"] = []

    assert {v.status for v in judged(sample_run, empty).values()} == {Status.ERROR}


@pytest.mark.parametrize(("ratio", "status"), [(1.0, Status.PASS), (0.9, Status.NOT_COMPARABLE)])
def test_a_model_that_computes_less_when_timed_is_not_comparable(
    sample_run: RunRecord, ratio: float, status: Status
) -> None:
    def probe(doc: Any) -> None:
        for x in doc["launches"]:
            for rank in x["ranks"]:
                if x["purpose"] in ("gate", "timed"):
                    checked = x["purpose"] == "gate"
                    rank["probe"] = {"flops": 1e6 * (1.0 if checked else ratio)}

    verdict = judged(sample_run, probe)["efficiency@2/plain"]
    assert verdict.status is status
    assert status is Status.PASS or "0.90x of the matrix products" in verdict.detail


def test_a_model_that_no_check_supports_is_not_comparable(sample_run: RunRecord) -> None:
    """It is not an ERROR of the training, and larger world sizes say the same."""
    why = "the model draws from numpy.random"
    cause = dict(rank=0, kind="not comparable", message=why, phase="gate", step=0, sure=True)

    def end(doc: Any) -> None:
        for x in doc["launches"]:
            if x["purpose"] == "gate" and x["arm"] == "@1":
                x.update(status="failed", cause=cause, ranks=[])
        doc["launches"] = [x for x in doc["launches"] if (x["purpose"], x["arm"]) == ("gate", "@1")]

    for verdict in judged(sample_run, end).values():
        assert (verdict.status, verdict.reason) == (Status.NOT_COMPARABLE, Reason.NOT_COMPARABLE)
        assert why in verdict.detail


def test_without_a_correctness_check_nothing_passes(sample_run: RunRecord) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] == "timed"]

    verdicts = judged(sample_run, drop)
    assert {(v.status, v.reason) for v in verdicts.values()} == {
        (Status.ERROR, Reason.NOT_MEASURED)
    }


def test_a_launch_that_ran_something_else_is_an_error(sample_run: RunRecord) -> None:
    verdict = judged(sample_run, lambda doc: timed(doc, "@2")[3].update(wrong=["world: 1 rank"]))
    assert verdict["efficiency@2/plain"].reason is Reason.WRONG_WORLD


def test_a_failed_launch_is_an_error_and_not_a_dropped_pair(sample_run: RunRecord) -> None:
    verdict = judged(sample_run, lambda doc: timed(doc, "@2")[0].update(status="failed"))
    assert verdict["efficiency@2/plain"].reason is Reason.LAUNCH_FAILED


def test_a_run_without_timed_launches_is_an_error(sample_run: RunRecord) -> None:
    def drop(doc: Any) -> None:
        doc["launches"] = [x for x in doc["launches"] if x["purpose"] == "gate"]

    verdicts = judged(sample_run, drop)
    assert {v.status for v in verdicts.values()} == {Status.ERROR}


def test_too_large_for_memory_is_a_skip(sample_run: RunRecord) -> None:
    def huge(doc: Any) -> None:
        for d in doc["described"].values():
            d["expected"]["memory_bytes"] = 10**15

    assert {v.reason for v in judged(sample_run, huge).values()} == {Reason.DOES_NOT_FIT}


def test_gradient_norms_of_a_strong_scaling_sweep_must_agree(sample_run: RunRecord) -> None:
    def strong(doc: Any, factor: float) -> None:
        """Turn the weak sample into a strong one and scale the gradient norm at one world size."""
        hashes = {}
        for plan in doc["plans"]:
            for arm in plan["arms"]:
                old = next(a for a in sample_run.plans[0].arms if a.name == arm["name"]).case
                arm["case"].update(mode="strong", global_batch=16)
                new = dataclasses.replace(old, mode=Mode.STRONG, global_batch=16)
                hashes[old.hash] = new.hash
        doc["described"] = {hashes[h]: d for h, d in doc["described"].items()}
        plan_hash = from_doc(Plan, doc["plans"][0]).hash
        for x in doc["launches"]:
            x.update(case=hashes[x["case"]], plan=plan_hash)
            for r in x["ranks"]:
                r["grad_norm"] = 2.0 * (factor if x["arm"] == "@2" else 1.0)

    right = judged(sample_run, lambda doc: strong(doc, 1 + 1e-7))
    wrong_ = judged(sample_run, lambda doc: strong(doc, 1 + 1e-4))
    assert right["efficiency@2/plain"].status is not Status.ERROR
    assert (wrong_["efficiency@2/plain"].status, wrong_["efficiency@2/plain"].reason) == (
        Status.ERROR,
        Reason.INCORRECT,
    )
    assert "gradient norm" in wrong_["efficiency@2/plain"].detail


def test_a_failing_description_is_an_error_and_not_a_skip(sample_run: RunRecord) -> None:
    def broke(doc: Any) -> None:
        for d in doc["described"].values():
            d.update(facts=None, expected=None, error="NameError: name 'x' is not defined")

    verdicts = judged(sample_run, broke)
    assert {(v.status, v.reason) for v in verdicts.values()} == {
        (Status.ERROR, Reason.LAUNCH_FAILED)
    }


def test_unmeasured_cases_of_an_interrupted_run_are_inconclusive(sample_run: RunRecord) -> None:
    def stop(doc: Any) -> None:
        doc.update(complete=False, launches=[], described={})

    verdicts = judged(sample_run, stop)
    assert {(v.status, v.reason) for v in verdicts.values()} == {
        (Status.INCONCLUSIVE, Reason.INTERRUPTED)
    }


SUBJECT = "efficiency@2/plain"


def test_the_first_failed_check_is_reported_on_any_rank(
    sample_run: RunRecord,
) -> None:
    """A missing broadcast also changes rank 0's gradients, but that is only a symptom."""
    gate = next(x for x in sample_run.launches if len(x.ranks) > 1 and x.ranks[0].checks)

    def checks(*wrong: str) -> tuple[Check, ...]:
        return tuple(
            Check(name=name, ok=name not in wrong, value=None, limit=None, detail="")
            for name in ("start_parameters", "gradients", "losses")
        )

    first, second, *rest = gate.ranks
    sentence = gate_failure(
        dataclasses.replace(
            gate,
            ranks=(
                dataclasses.replace(first, checks=checks("gradients", "losses")),
                dataclasses.replace(second, checks=checks("start_parameters", "gradients")),
                *rest,
            ),
        )
    )
    assert sentence == "start_parameters on rank 1:"


@pytest.mark.parametrize("purpose", ["gate", "timed"])
def test_out_of_memory_is_a_skip_and_not_an_incorrect_training_run(
    sample_run: RunRecord, purpose: str
) -> None:
    def full(doc: Any) -> None:
        mine = [x for x in doc["launches"] if (x["purpose"], x["arm"]) == (purpose, "@2")]
        mine[0]["status"] = "failed"
        mine[0]["cause"] = dict(
            rank=1, kind="memory", message="CUDA out of memory", phase="gate", step=0, sure=True
        )

    verdict = judged(sample_run, full)[SUBJECT]
    assert (verdict.status, verdict.reason) == (Status.SKIP, Reason.DOES_NOT_FIT)
    assert "CUDA out of memory" in verdict.detail


@pytest.mark.parametrize(("precision", "status"), [("fp8", Status.SKIP), ("fp32", Status.ERROR)])
def test_a_gpu_without_fp8_support_is_a_skip(precision: str, status: Status) -> None:
    """The message is that of torch on an A100 or a 3090; if the case did not ask for fp8, it is an
    ERROR.
    """
    message = (
        "RuntimeError: torch._scaled_mm is only supported on CUDA devices with compute capability"
    )
    case = Site(device=Device.CUDA, backend="nccl", nodes=(1,)).case(
        "single/mlp-nano", precision=precision
    )
    cause = Cause(
        rank=0, kind="exception", message=f"{message} >= 9.0 or 8.9, or ROCm MI300+", phase="gate",
        step=0, sure=True,
    )  # fmt: skip
    launch = SimpleNamespace(cause=cause, launch="g0", status=LaunchStatus.FAILED)
    conclusion = not_here(case, launch)  # type: ignore[arg-type]
    assert (conclusion.status if conclusion else Status.ERROR) is status
