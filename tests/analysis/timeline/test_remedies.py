"""Every remedy is a case that can run and that changes what the remedy's name says."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.timeline.advice import remedies
from harness.record import Expected, Term
from tests.analysis.timeline.test_advice import CASES, KNOWN


def expected(**fields: Any) -> Expected:
    return Expected(
        sent_bytes=(1.0,), payload_bytes={}, largest_message=1.0, module="", ideal_efficiency=1.0,
        memory_bytes=1, formula="", global_batch=32, **fields,
    )  # fmt: skip


def named(name: str, term: Term, **fields: Any) -> list[str]:
    case = KNOWN.normalise(CASES[name])
    return [r.name for r in remedies(term, case, expected(**fields), KNOWN)]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("term", list(Term))
def test_every_remedy_is_a_valid_different_case(name: str, term: Term) -> None:
    case = KNOWN.normalise(CASES[name])
    stages = 2 if name == "pipeline" else 1
    settings_of_it = {"bubble": "pipeline.microbatches=16"} if stages > 1 else {}
    for remedy in remedies(term, case, expected(stages=stages, remedies=settings_of_it), KNOWN):
        changed = KNOWN.normalise(remedy.of(case))
        assert changed.hash != case.hash, remedy
        assert changed.world_size == case.world_size


def test_each_term_gets_remedies_that_may_help() -> None:
    transfer = named("weak", Term.TRANSFER)
    assert transfer[:2] == ["ddp.bucket_cap_mb=6.25", "ddp.bucket_cap_mb=100"]
    assert "compressed:powersgd" in transfer and transfer[-1] == "micro_batch=32"
    assert not any("masked" in name for name in transfer), (
        "a compressor with an injected fault must not be suggested"
    )
    assert named("codec", Term.DATA) == ["data=prefetched", "data=resident"]
    assert named("files", Term.DATA) == ["files.workers=2", "data=resident"]
    assert named("weak", Term.DATA) == []
    assert named("strong", Term.LAUNCH) == ["global_batch=64"]
    bubble = named(
        "pipeline", Term.BUBBLE, stages=2, remedies={"bubble": "pipeline.microbatches=16"}
    )
    assert "pipeline.microbatches=16" in bubble
    assert named("weak", Term.COMPUTE) == []


def test_remedies_that_change_the_training_are_marked() -> None:
    case = KNOWN.normalise(CASES["weak"])
    alike = {r.name: r.alike for r in remedies(Term.TRANSFER, case, expected(), KNOWN)}
    assert alike["ddp.bucket_cap_mb=100"] and not alike["compressed:int8"]
    assert not alike["micro_batch=32"]
