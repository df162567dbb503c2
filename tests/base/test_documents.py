"""A document survives the way to JSON and back, and its schema accepts what the decoder accepts."""

from __future__ import annotations

import json

import jsonschema
import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.base.documents import fields_of, from_doc, json_schema, reads_as, says, to_doc
from harness.cases import Mode, Protocol
from harness.record import Reason, Status, Verdict

floats = st.floats(allow_nan=False, allow_infinity=False)
verdicts = st.builds(
    Verdict,
    contrast=st.text(), case=st.text(), case_hash=st.text(), plan=st.text(), metric=st.text(),
    against=st.text(), rule=st.none() | st.text(), bound=st.text(), status=st.sampled_from(Status),
    reason=st.sampled_from(Reason), detail=st.text(), value=st.none() | floats, low=st.none() | floats,
    high=st.none() | floats, n=st.integers(0, 99), mde=st.none() | floats,
    pairs=st.lists(floats).map(tuple), launches=st.lists(st.text()).map(tuple), waived=st.booleans(),
)  # fmt: skip


@given(verdicts)
def test_round_trip_through_text(verdict: Verdict) -> None:
    assert from_doc(Verdict, json.loads(json.dumps(to_doc(verdict)))) == verdict


@given(verdicts)
def test_schema_accepts_every_document(verdict: Verdict) -> None:
    jsonschema.validate(json.loads(json.dumps(to_doc(verdict))), json_schema(Verdict, title="v"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@given(values, values)
def test_reads_as_accepts_only_the_document_of_the_same_value(value: object, other: object) -> None:
    def read(x: object) -> object:
        return json.loads(json.dumps(to_doc(x)))

    assert not reads_as(value, read(other)) or read(value) == read(other)
    if reads_as(value, read(value)):
        assert not reads_as(value, [read(value)])


@given(verdicts, verdicts)
def test_says_accepts_only_the_document_of_the_same_record(
    verdict: Verdict, other: Verdict
) -> None:
    document = json.loads(json.dumps(to_doc(verdict)))
    assert says(document, verdict) and says([document], [verdict])
    assert says(document, other) == (verdict == other)
    assert not says({**document, "surprise": 1}, verdict)


@given(verdicts)
def test_a_missing_field_of_a_document_equals_its_default(verdict: Verdict) -> None:
    document = json.loads(json.dumps(to_doc(verdict)))
    del document["waived"]
    assert says(document, verdict) is not verdict.waived
    del document["detail"]  # This field has no default.
    assert not says(document, verdict)


def test_values_that_json_cannot_represent_are_not_read_as_equal() -> None:
    assert reads_as({"a": (1, 2.5)}, {"a": [1, 2.5]})
    for value in (float("nan"), "\ud800", 2**70):
        assert not reads_as(value, value)
    assert not reads_as({"a": float("inf")}, {"a": None}), (
        "an infinite value does not equal a missing one"
    )
    half = {**to_doc(Protocol(steps=10, cut=2)), "surprise": "\ud800"}
    with pytest.raises(ValueError, match="unknown field 'surprise'"):
        from_doc(Protocol, half)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"extra": 1}, "unknown field 'extra'"),
        ({"steps": "ten"}, r"Protocol.steps: Expected `int`, got `str`"),
        ({"steps": True}, "Protocol.steps: Expected `int`"),
    ],
)
def test_wrong_documents_are_refused_by_decoder_and_schema(
    change: dict[str, object], says: str
) -> None:
    doc = {**to_doc(Protocol(steps=10, cut=2)), **change}
    with pytest.raises(ValueError, match=says):
        from_doc(Protocol, doc)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(doc, json_schema(Protocol, title="p"))


def test_missing_fields_and_unknown_enums_name_their_path() -> None:
    with pytest.raises(ValueError, match="Protocol: Object missing required field `cut`"):
        from_doc(Protocol, {"steps": 3})
    with pytest.raises(ValueError, match="Mode: .wek. is none of weak, strong"):
        from_doc(Mode, "wek")


def test_a_numpy_scalar_is_written_as_a_number() -> None:
    assert to_doc([np.float64(0.5), np.int64(3)]) == [0.5, 3]


def test_fields_of_a_decoded_record_include_defaults() -> None:
    """``vars`` alone would omit the fields that the document does not contain."""
    read = from_doc(Protocol, {"steps": 10, "cut": 2})
    assert fields_of(read) == vars(Protocol(steps=10, cut=2))
