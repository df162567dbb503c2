"""The answers of ``predict`` and ``goodput``: what is foreseen, and what came of it."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from harness.analysis.foresight.held_out import Score
from harness.analysis.foresight.outlook import Outlook as SizeOutlook
from harness.analysis.foresight.possible import LeftOut, Possibility
from harness.analysis.foresight.predict import NotPredicted, Predicted
from harness.analysis.foresight.published.table import Refused as RefusedTable
from harness.analysis.goodput import Costs


class ForetoldTable(TypedDict):
    id: str
    family: str
    notes: Sequence[str]
    taught_by: Sequence[str]
    predicted: Sequence[Predicted]
    refused: Sequence[NotPredicted]


class Scores(TypedDict):
    by_table: Sequence[Score]
    by_family: Sequence[Score]
    whole: Score | None


class Foretold(TypedDict):
    tables: Sequence[ForetoldTable]
    scores: Scores
    refused: Sequence[RefusedTable]
    outlooks: Sequence[SizeOutlook]


class Allowed(TypedDict):
    possible: Sequence[Possibility]
    left_out: Sequence[LeftOut]


class Endured(TypedDict):
    costs: Costs
    best_every: int
    every: int
    expected: float
    foretold: float | None
    measured: float | None
    terms_ns: Mapping[str, int] | None
    run: str
