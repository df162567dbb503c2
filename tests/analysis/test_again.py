"""A printed command, typed again, measures the same case, whatever its fields are."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, strategies as st

from harness.analysis.rerun_command import changed, command
from harness.base.errors import SpecError
from harness.cases import CaseSpec, Device, Mode, Settings, Site
from harness.cases.script import script_plan
from harness.cases.targets import NAMED, SETTABLE, case_of
from harness.interface.cli.measuring import settings

HINTS = get_type_hints(CaseSpec)
#: Values for fields whose type alone is not enough: texts with a special form, and values that
#: depend on the number of ranks.
FORMS: Mapping[str, st.SearchStrategy[Any]] = {
    "mesh": st.sampled_from(["dp:2", "dp:1,tp:2"]),
    "stragglers": st.sampled_from(["1:0.5", "n0:0.9,1:0.25"]),
    "data": st.sampled_from(["loaded", "files"]),
    "backend": st.sampled_from(["gloo", "mpi"]),
    "shares": st.just((1.0, 0.5)),
    "last_batch": st.sampled_from([0.5, 0.25]),
}


def on(ranks: int) -> Site:
    return Site(device=Device.CPU, backend="gloo", nodes=(ranks,))


def values_of(name: str) -> st.SearchStrategy[Any]:
    hint = HINTS[name]
    if name in FORMS:
        return FORMS[name]
    if hint is bool:
        return st.booleans()
    if hint is float:
        return st.integers(0, 40).map(lambda n: n / 8)
    if hint in (int, int | None):
        return st.integers(1, 64)
    return st.sampled_from(list(hint))


def typed_again(words: str) -> CaseSpec:
    """Return the case that a printed command runs."""
    program, verb, family, unit, ranks, *rest = shlex.split(words)
    assert (program, verb, unit) == ("scaleproof", "run", "--cpus")
    given_ = [rest[i + 1] for i in range(0, len(rest), 2)]
    assert set(rest[::2]) <= {"--set"}
    asked: Any = argparse.Namespace(options=argparse.Namespace(set=given_))
    return case_of(family, on(int(ranks)), settings(asked))


@given(st.fixed_dictionaries({}, optional={name: values_of(name) for name in SETTABLE}))
def test_every_field_survives_the_printed_command(changes: dict[str, Any]) -> None:
    case = replace(on(2).case("ddp/mlp-nano", "weak"), **changes)
    assert typed_again(command(case, Settings())).hash == case.hash


@given(
    st.dictionaries(
        st.sampled_from(["topk.rho", "ddp.bucket_cap_mb", "mlp.deep", "pipeline.split"]),
        st.one_of(st.booleans(), st.integers(0, 9), st.sampled_from([0.5, 25.0]), st.just("1,2")),
    ),
    st.dictionaries(st.sampled_from(["GLOO_A", "GLOO_B"]), st.sampled_from(["Ring", "a b"])),
)
def test_knobs_and_variables_survive_the_printed_command(
    knobs: dict[str, Any], environment: dict[str, str]
) -> None:
    case = replace(on(2).case("ddp/mlp-nano", "weak"), knobs=knobs, environment=environment or None)
    assert typed_again(command(case, Settings())).hash == case.hash


def test_every_field_is_in_the_name_or_can_be_set() -> None:
    """A field that is added later can be set without another change."""
    assert {*NAMED, *SETTABLE} == {f.name for f in fields(CaseSpec)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("clip=much", "clip"),
        ("NCCL_DEBUG=INFO", "no such field"),
        ("checkpoint=perhaps", "checkpoint"),
        ("colour=red", "no such field"),
        ("CLIP=1", "no such field"),
        ("world_size=4", "another option sets"),
        ("environment=NCCL_ALGO", "another option sets"),
    ],
)
def test_invalid_settings_are_refused(words: str, message: str) -> None:
    asked: Any = argparse.Namespace(options=argparse.Namespace(set=[words]))
    with pytest.raises(SpecError, match=message):
        case_of("ddp/mlp-nano", on(2), settings(asked))


@pytest.mark.parametrize("name", [name for name in SETTABLE if HINTS[name] is not str])
def test_the_suggested_setting_is_accepted(name: str) -> None:
    asked: Any = argparse.Namespace(options=argparse.Namespace(set=[f"{name}=so, so"]))
    with pytest.raises(SpecError) as refused:
        case_of("ddp/mlp-nano", on(2), settings(asked))
    asked.options.set = shlex.split(refused.value.fix)[1:]
    assert name in settings(asked)
    case_of("ddp/mlp-nano", on(2), settings(asked))


def test_a_printed_case_id_is_refused_with_the_command_that_runs_it() -> None:
    case = replace(on(2).case("ddp/mlp-nano", "weak"), clip=1.5, knobs={"ddp.bucket_cap_mb": 5.0})
    with pytest.raises(SpecError) as refused:
        case_of(case.id, on(2), {})
    assert typed_again(refused.value.fix).hash == case.hash


def test_a_field_that_is_set_twice_is_refused() -> None:
    asked: Any = argparse.Namespace(options=argparse.Namespace(set=["clip=1", "clip=2"]))
    with pytest.raises(SpecError, match="twice"):
        settings(asked)


def test_the_printed_command_of_a_script_keeps_its_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    words = ["train.py", "--lr", "3e-4", "--name", "two words"]
    plan = script_plan(words, on(4), Mode.STRONG, samples=8)
    settings_ = Settings(fresh=True, data=("data",))
    again = shlex.split(command(plan.arms[-1].case, settings_))
    assert again[: again.index("--")] == [
        "scaleproof", "run", "--script", "--cpus", "4", "--mode", "strong", "--samples-per-step", "8",
        "--fresh", "--data", "data",
    ]  # fmt: skip
    assert again[again.index("--") + 1 :] == words


def test_the_printed_command_of_a_script_keeps_its_first_world_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model does not fit in smaller worlds, but the case of one world size does not contain
    this.
    """
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    options = ["--first-rung", "2", "--steps=6", "--warm-up", "2"]
    typed = (
        "scaleproof",
        "run",
        "--script",
        "--cpus",
        "4",
        *options,
        "--",
        "train.py",
        "--steps",
        "9",
    )
    plan = script_plan(["train.py", "--steps", "9"], on(4), first_rung=2)
    assert tuple(shlex.split(command(plan.arms[-1].case, Settings(argv=typed)))) == typed


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("scaleproof run -- t.py --mode a", "scaleproof run --mode strong -- t.py --mode a"),
        ("scaleproof run --mode weak --cpus 2 -- t.py", "scaleproof run --cpus 2 --mode strong -- t.py"),
        ("scaleproof run --mode=weak --time-budget 20 -- t.py", "scaleproof run --time-budget 20 --mode strong -- t.py"),
        ("scaleproof run --data 'my data' -- t.py", "scaleproof run --data 'my data' --mode strong -- t.py"),
    ],
)  # fmt: skip
def test_one_option_of_a_typed_command_is_replaced(typed: str, wanted: str) -> None:
    assert changed(shlex.split(typed), mode="strong") == wanted
