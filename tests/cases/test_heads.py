"""The head of a file is read as literals, without running the file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from harness.base.errors import SpecError
from harness.cases import Precision
from harness.cases.heads import EngineFacts, Supports, check_imported, facts, read_head

literals = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(literals)
def test_a_literal_is_read_as_python_reads_it(
    tmp_path_factory: pytest.TempPathFactory, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "head.py"
    path.write_text(f'"""A file.\n\nMore."""\n\nVALUE = {value!r}\nlower = 1\n')
    doc, head = read_head(path)
    assert (doc, head) == ("A file.", {"VALUE": ast.literal_eval(repr(value))})


def test_reading_a_head_does_not_run_the_file(tmp_path: Path) -> None:
    path = tmp_path / "head.py"
    path.write_text(
        'raise SystemExit("run")\nA = dict(b=1, c=dict(d=(2, 3)))\nB: int = 4\n'
        "C = open('x')\nD = dict(e=open('x'))\nE = A\n"
    )
    assert read_head(path) == ("", {"A": {"b": 1, "c": {"d": (2, 3)}}, "B": 4})


@pytest.mark.parametrize(
    ("text", "line"), [(b"def f(:\n", "(line 1)"), (b"x = 1\n  y = 2\n", "(line 2)"), (b"\xff", "")]
)
def test_invalid_python_is_one_error_with_its_line(tmp_path: Path, text: bytes, line: str) -> None:
    path = tmp_path / "head.py"
    path.write_bytes(text)
    with pytest.raises(SpecError) as error:
        read_head(path)
    assert "is not valid Python" in str(error.value) and line in str(error.value)
    assert error.value.fix == f"python -m py_compile {path}"


def test_all_mistakes_of_a_head_are_reported_together() -> None:
    with pytest.raises(SpecError) as error:
        facts(EngineFacts, {"multinode": True, "pack": False}, "engine.py")
    message = str(error.value)
    assert "did you mean 'multi_node'?" in message and "did you mean 'packs'?" in message


@pytest.mark.parametrize(
    ("head", "wrong"),
    [
        ({"oracle": "simulated"}, "needs 'beside'"),
        ({"oracle": "compressed"}, "needs compressor=True"),
        ({"oracle": "micro_batched"}, "needs 'parts'"),
        ({"oracle": "guessed"}, "oracle"),
    ],
)
def test_a_head_must_contain_what_its_reference_needs(head: dict[str, str], wrong: str) -> None:
    with pytest.raises(SpecError, match=wrong):
        facts(Supports, {"worlds": "any", "initial": "same_seed", **head}, "strategy.py")


def test_a_strategy_states_why_it_cannot_train_a_model() -> None:
    supports = Supports(
        worlds="any", oracle="shard_ordered", initial="same_seed", needs=("EXPERTS",),
        precisions=(Precision.FP32,),
    )  # fmt: skip
    assert "where its experts are" in supports.misses([], Precision.FP32)
    assert "does not train in bf16" in supports.misses(["EXPERTS"], Precision.BF16)
    assert supports.misses(["EXPERTS"], Precision.FP32) == ""


class Sly(dict[str, object]):
    """A dict that claims to equal every object, as a malicious module could define."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("imported", "complaint"),
    [
        ({"SIZES": {"nano": {"d": 8}}}, ""),
        # SETTINGS is a head of other kinds of files, so it is ignored here.
        ({"SIZES": {"nano": {"d": 8}}, "SETTINGS": {}}, ""),
        ({"SIZES": {"nano": {"d": 8.0}}}, "after import"),
        ({"SIZES": {"nano": Sly(d=1)}}, "after import"),
        ({"SIZES": Sly()}, "after import"),
        ({}, "after import"),
        ({"SIZES": {"nano": {"d": 8}}, "KNOBS": {"a": 1}}, "KNOBS is computed"),
        ({"SIZES": {"nano": {"d": 8}}, "AT_ONCE": {}}, "waits instead of computing"),
        ({"SIZES": {"nano": {"d": 8}}, "period_s": len}, "waits instead of computing"),
    ],
)
def test_what_is_imported_is_what_the_text_says(
    imported: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "net.py"
    path.write_text("SIZES = dict(nano=dict(d=8))\nAT = 1\n")
    if not complaint:
        check_imported("models", path, imported)
        return
    with pytest.raises(SpecError, match=complaint):
        check_imported("models", path, imported)


@pytest.mark.parametrize(
    "text", ["A = dict(OTHER, a=1)", "A = dict(**OTHER)", "A = 1\nA = computed()"]
)
def test_a_computed_value_is_not_read_as_a_literal(text: str, tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(text)
    assert "A" not in read_head(path)[1]
