"""The catalogue finds each extension by the literal head of its file, without importing the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.base.errors import SpecError
from harness.cases import Catalogue, Device, Mode, Site, StandIn, targets
from harness.cases.heads import read_head
from harness.cases.recipes import ladder
from harness.launch.engine import make

SITE = Site(device=Device.CPU, backend="gloo", nodes=(2,))


def test_every_shipped_entry_is_found_with_its_description() -> None:
    entries = Catalogue().entries
    known = {
        "single", "ddp", "ddp_naive", "zero1", "replicate", "fsdp", "fsdp1", "compressed",
        "pipeline", "tensor_parallel", "context_parallel", "expert_parallel", "table_parallel",
        "local_sgd", "diloco", "easgd", "fedavg", "ddp_join", "parameter_server", "actor_learner",
        "zero_one_adam", "two_jobs",
        "accelerate", "deepspeed", "lightning_fabric", "megatron", "ray_train",
    }  # fmt: skip
    assert set(entries["strategies"]) == known
    assert set(entries["models"]) >= {
        "decoder",
        "moe",
        "ragged",
        "mlp",
        "vggfc",
        "resnet",
        "synthetic",
        "paced",
    }
    assert set(entries["compressors"]) >= {
        "none",
        "fp16",
        "bf16",
        "int8",
        "powersgd",
        "topk",
        "masked_topk",
    }
    assert set(entries["engines"]) >= {"local", "torchrun", "hosts", "emulated", "slurm"}
    assert all(e.doc for kind in entries.values() for e in kind.values())


def test_a_users_file_is_found_but_not_imported(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""Mine."""\nraise SystemExit\nSUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="own")\nKNOBS = dict(a=1)\n'
    )
    entry = Catalogue([tmp_path]).get("strategies", "mine")
    assert (entry.doc, entry.knobs) == ("Mine.", {"version": 1, "a": 1})


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ('SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="own", replcas=True)',
         ["'replcas' is unknown: did you mean 'replicas'?"]),
        ("SUPPORTS = dict(wrlds='any', modees=('weak',))",
         ["did you mean 'worlds'", "did you mean 'modes'"]),
        ('SUPPORTS = dict(worlds="some", oracle="shard_ordered", initial="own")', ["worlds"]),
        ("ENGINE = dict(jions=True)", ["did you mean 'joins'?"]),
    ],
)  # fmt: skip
def test_a_mistake_in_a_head_is_reported_when_it_is_read(
    tmp_path: Path, head: str, says: list[str]
) -> None:
    (tmp_path / "mine.py").write_text(f'"""Mine."""\n{head}\n')
    with pytest.raises(SpecError) as caught:
        Catalogue([tmp_path]).entries  # noqa: B018
    assert all(text in str(caught.value) for text in says) and "mine.py" in str(caught.value)


def test_a_users_engine_is_found_and_constructed(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        '"""Mine."""\nfrom harness.launch.engines.local import build\nENGINE = dict(faults=("agent",))\n'
    )
    entry = Catalogue([tmp_path]).get("engines", "mine")
    assert entry.engine.faults == ("agent",) and make(entry).probe().available


def test_a_users_file_may_not_shadow_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "ddp.py").write_text('"""Mine."""\nSUPPORTS = dict()\n')
    with pytest.raises(SpecError, match="named 'ddp' exists already"):
        Catalogue([tmp_path]).entries  # noqa: B018


def test_computed_heads_are_skipped_and_syntax_errors_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "m.py"
    file.write_text("A = 1\nB = len('x')\nC = {'a': dict(b=[1, 2])}\n")
    assert read_head(file)[1] == {"A": 1, "C": {"a": {"b": [1, 2]}}}
    file.write_text("def (:\n")
    with pytest.raises(SpecError, match="not valid Python"):
        read_head(file)


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("dpd/decoder-tiny", {}, "did you mean 'ddp'"),
        ("ddp/decoder-tny", {}, "has no size 'tny'"),
        ("ddp/decodr-tiny", {}, "did you mean 'decoder'"),
        ("compressed/decoder-tiny", {}, "needs a compressor"),
        ("ddp:topk/decoder-tiny", {}, "takes no compressor"),
        ("compressed:topkk/decoder-tiny", {}, "did you mean 'topk'"),
        ("single/decoder-tiny", {}, "runs on one rank only"),
        ("ddp/decoder-tiny", {"knobs": {"ddp.bucket_mb": 1}}, "did you mean 'ddp.bucket_cap_mb'"),
        ("ddp/decoder-tiny", {"knobs": {"ddp.bucket_cap_mb": "x"}}, "knob ddp.bucket_cap_mb = 'x'"),
        ("ddp/decoder-tiny", {"nodes": (3,)}, "do not add up to 2"),
        ("ddp/decoder-tiny", {"mode": Mode.STRONG}, "needs a global batch"),
        ("ddp/decoder-tiny", {"global_batch": 8}, "derives the global batch"),
        ("ddp/decoder-tiny", {"micro_batch": 0}, "micro_batch = 0"),
        ("ddp/decoder-tiny", {"accumulate": -1}, "accumulate = -1"),
        ("ddp/mlp-nano", {"seq_len": 8}, "has no sequence length"),
        (
            "ddp/mlp-nano",
            {"mode": Mode.STRONG, "global_batch": 8, "micro_batch": 2},
            "derives the micro-batch",
        ),
    ],
)
def test_mistakes_in_a_case_are_reported_with_a_fix(
    name: str, fields: dict[str, object], says: str
) -> None:
    case = replace(SITE.case(name), **fields)  # type: ignore[arg-type]
    with pytest.raises(SpecError) as caught:
        Catalogue().normalise(case)
    assert says in str(caught.value)
    assert "try" in str(caught.value)


def test_default_knobs_are_dropped_and_simulated_compute_is_labelled() -> None:
    known = Catalogue()
    same = known.normalise(SITE.case("ddp/decoder-tiny", knobs={"ddp.bucket_cap_mb": 25}))
    assert same == known.normalise(SITE.case("ddp/decoder-tiny"))
    assert known.normalise(SITE.case("ddp/paced-small")).stand_in == {StandIn.PACED}


def test_twin_keeps_everything_but_the_size() -> None:
    known = Catalogue()
    case = known.normalise(SITE.case("ddp/decoder-llama-8b", precision="bf16", accumulate=2))
    twin = known.twin(case)
    assert (twin.size, twin.precision, twin.accumulate, twin.world_size) == ("nano", "bf16", 2, 2)
    strong = SITE.case("ddp/decoder-tiny", Mode.STRONG, global_batch=256)
    assert known.twin(known.normalise(strong)).global_batch == 16


def test_a_new_version_starts_a_new_series(tmp_path: Path) -> None:
    text = '"""Mine."""\nSUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="own")\n'
    (tmp_path / "mine.py").write_text(text)
    old = Catalogue([tmp_path]).normalise(SITE.case("mine/mlp-nano"))
    (tmp_path / "mine.py").write_text(text + "VERSION = 2\n")
    new = Catalogue([tmp_path]).normalise(SITE.case("mine/mlp-nano"))
    assert old.hash != new.hash and new.knobs == {"mine.version": 2}


def test_a_mistake_is_reported_for_the_case_that_the_user_named() -> None:
    """The error names the user's case, although its baseline comes first in the plan."""
    case = SITE.case("compressed:topk/decoder-tiny", Mode.STRONG)
    with pytest.raises(SpecError, match=r"^compressed:topk.*: strong mode needs a global batch"):
        targets.normalise(ladder(case, (1, 2)), Catalogue())


def test_two_folders_with_a_file_of_the_same_name_are_refused(tmp_path: Path) -> None:
    """Both files are imported by that name, so ranks might import the wrong one."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "common.py").write_text("")
        (tmp_path / name / "__init__.py").write_text("")
    with pytest.raises(SpecError, match=r"a and b both have a file common\.py"):
        Catalogue([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "b" / "common.py").unlink()
    Catalogue([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
