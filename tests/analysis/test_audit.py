"""The audit of a record: no launch is called something else to be rid of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.analysis.verify import verify
from harness.base.errors import RecordError
from harness.record.store import load
from tests.editing import change, rechain

Doc = Any


def told(folder: Path) -> list[str]:
    """What is found; a record that cannot be read is found, too."""
    try:
        return list(verify(load(folder), folder).differences)
    except RecordError as error:
        return [str(error)]


def test_no_launch_is_called_stalled_to_be_rid_of_it(copy: Path) -> None:
    def hide(doc: Doc) -> None:
        slow = next(x for x in doc["launches"] if x["purpose"] == "timed")
        slow["purpose"] = "stalled"

    change(copy, hide)
    rechain(copy)
    assert any("timed again, but the host did not stand still" in text for text in told(copy))


def test_no_launch_is_called_a_flake_to_be_rid_of_it(copy: Path) -> None:
    def hide(doc: Doc) -> None:
        slow = next(x for x in doc["launches"] if x["purpose"] == "timed")
        slow["purpose"] = "flaked"

    change(copy, hide)
    rechain(copy)
    assert any("launched once more, but nothing had ended it" in text for text in told(copy))
