"""One function derives a case's id, hash, pytest id and series; run settings do not affect them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.base.documents import from_doc, to_doc
from harness.cases import (
    CaseSpec,
    Device,
    Mode,
    Precision,
    Site,
    StandIn,
)

SITE = Site(device=Device.CPU, backend="gloo", nodes=(4,))
GPUS = Site(device=Device.CUDA, backend="nccl", nodes=(4, 4))

GOLDEN = [
    (SITE.case("ddp/decoder-tiny"), "ddp/decoder-tiny/weak@4cpu", "ddp-decoder_tiny-weak-4cpu"),
    (GPUS.case("fsdp/decoder-8b"), "fsdp/decoder-8b/weak@2x4gpu", "fsdp-decoder_8b-weak-2x4gpu"),
    (
        SITE.case("compressed:topk/mlp-small"),
        "compressed:topk/mlp-small/weak@4cpu",
        "compressed_topk-mlp_small-weak-4cpu",
    ),
    (
        SITE.case("ddp/mlp-wide", Mode.STRONG, global_batch=64),
        "ddp/mlp-wide/strong@4cpu+global_batch=64",
        "ddp-mlp_wide-strong-4cpu-global_batch_64",
    ),
    (
        SITE.case("ddp/mlp-wide", precision=Precision.BF16),
        "ddp/mlp-wide/weak@4cpu+precision=bf16",
        "ddp-mlp_wide-weak-4cpu-precision_bf16",
    ),
    (
        SITE.case("ddp/mlp-wide", knobs={"ddp.bucket_cap_mb": 5.0}),
        "ddp/mlp-wide/weak@4cpu+ddp.bucket_cap_mb=5",
        "ddp-mlp_wide-weak-4cpu-ddp.bucket_cap_mb_5",
    ),
    (
        replace(GPUS, nodes=(4, 8, 16)).case("ddp/mlp-wide"),
        "ddp/mlp-wide/weak@4+8+16gpu",
        "ddp-mlp_wide-weak-4-8-16gpu",
    ),
    (
        replace(GPUS, nodes=(2,), backend="gloo").case("ddp/mlp-wide"),
        "ddp/mlp-wide/weak@2gpu+backend=gloo",
        "ddp-mlp_wide-weak-2gpu-backend_gloo",
    ),
    (
        SITE.case("single/resnet-nano").at(1),
        "single/resnet-nano/weak@1cpu",
        "single-resnet_nano-weak-1cpu",
    ),
    (
        SITE.case("ddp/decoder-tiny", accumulate=4, checkpoint=True),
        "ddp/decoder-tiny/weak@4cpu+accumulate=4+checkpoint=True",
        "ddp-decoder_tiny-weak-4cpu-accumulate_4-checkpoint_True",
    ),
]


@pytest.mark.parametrize(("case", "case_id", "pytest_id"), GOLDEN, ids=[g[1] for g in GOLDEN])
def test_ids_equal_the_golden_ones(case: CaseSpec, case_id: str, pytest_id: str) -> None:
    assert case.id == case_id
    assert case.pytest_id == pytest_id


def test_the_hash_covers_only_non_default_fields() -> None:
    case = SITE.case("ddp/decoder-tiny")
    assert case.hash == "70a8a67db17e3b53"
    assert set(case.series) == {
        "strategy", "model", "size", "mode", "world_size", "nodes", "device", "backend",
    }  # fmt: skip
    assert replace(case, seed=0, accumulate=1).hash == case.hash
    assert replace(case, seed=1).hash != case.hash
    assert replace(case, stand_in=frozenset({StandIn.PACED})).hash != case.hash


def test_different_cases_have_different_ids_and_hashes() -> None:
    cases = [g[0] for g in GOLDEN]
    assert len({c.id for c in cases}) == len({c.hash for c in cases}) == len(cases)


def test_a_case_survives_serialization() -> None:
    for case, _, _ in GOLDEN:
        assert from_doc(CaseSpec, to_doc(case)) == case


def test_variables_that_change_speed_enter_the_hash_and_timeouts_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = SITE.case("ddp/decoder-tiny")
    for name in ("GLOO_TIMEOUT_SECONDS", "GLOO_LOG_LEVEL", "NCCL_P2P_DISABLE"):
        monkeypatch.setenv(name, "1")
    assert SITE.case("ddp/decoder-tiny").hash == plain.hash, (
        "none of these variables changes gloo's speed"
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")
    other = SITE.case("ddp/decoder-tiny")
    assert other.hash != plain.hash
    assert "+GLOO_SOCKET_IFNAME=eth1" in other.id


def test_a_smaller_world_drops_settings_of_ranks_outside_of_it() -> None:
    case = replace(SITE.case("ddp/mlp-nano").at(4), stragglers="1:0.5,3:0.2", shares=(1, 2, 3, 4))
    assert case.slowed == {1: 0.5, 3: 0.2}
    assert case.at(2).slowed == {1: 0.5} and case.at(2).shares == (1, 2)
    assert case.at(1).extras == ""


@pytest.mark.parametrize("text", ["1", "1:2", "x:0.5", "9:0.5", "1:0.0"])
def test_malformed_stragglers_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not RANK:SHARE"):
        _ = replace(SITE.case("ddp/mlp-nano").at(4), stragglers=text).slowed
