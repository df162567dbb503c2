"""The registry of checks of a user's script, whose failure is an ERROR.

A check is one function with a decorator: ``of_launch`` if it looks at one launch, and ``of_worlds``
if it compares the launches of two world sizes. The messages, the words of ``--accept``, the list of
checks in the docs and the tests of the registry are made from it. Observations that are not
certainly mistakes are remarks (``harness.interface.report.script.remark``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from harness.analysis.script import counting
from harness.cases import CaseSpec
from harness.cases.script import ACCEPTABLE
from harness.record import LaunchRecord, RankRecord, ScriptObservations
from harness.record.store import Samples


@dataclass(frozen=True)
class Launched:
    """One launch of a script, as its ranks recorded it."""

    case: CaseSpec
    ranks: Sequence[RankRecord]
    samples: Sequence[Samples]

    @cached_property
    def watched(self) -> Sequence[ScriptObservations]:
        """The observations of all ranks."""
        return [rank.watched for rank in self.ranks if rank.watched is not None]

    @cached_property
    def uncounted(self) -> str:
        """Why the samples cannot be counted by their content; empty if they can."""
        return counting.counted(self.ranks, self.samples)

    @cached_property
    def declared(self) -> int | None:
        """The number of samples of a step that the user declares, or None."""
        return counting.declared(self.case)

    @cached_property
    def rows(self) -> int:
        """The number of distinct rows that reach the model in the last step, over all ranks."""
        return counting.rows(self.samples, self._last)

    @cached_property
    def arrived(self) -> Sequence[int]:
        """The number of rows that reach the model of each rank in the last step."""
        seen = [sample.seen for sample in self.samples if sample.seen is not None]
        return [int((rows[self._last] != 0).sum()) for rows in seen]

    @property
    def _last(self) -> int:
        return len(self.samples[0].marks_s) - 2


@dataclass(frozen=True)
class Worlds:
    """The launches of a case (``mine``) and of its baseline (``base``).

    ``edited`` says that the two are versions of one script, so its file may differ.
    """

    case: CaseSpec
    mine: Sequence[LaunchRecord]
    base: Sequence[LaunchRecord]
    edited: bool = False

    @property
    def pair(self) -> Sequence[tuple[LaunchRecord, LaunchRecord]]:
        """The first launches of the case and of the baseline; empty if one has no launch."""
        return [*zip(self.mine[:1], self.base[:1], strict=False)]


Evidence = TypeVar("Evidence", Launched, Worlds)


@dataclass(frozen=True)
class ScriptCheck(Generic[Evidence]):
    """One check.

    ``code`` is the first word of its messages, and the word with which a user accepts its failure.
    ``mistakes`` yields a sentence for each mistake, with a possible fix.
    """

    code: str
    observation: str
    mistake: str
    mistakes: Callable[[Evidence], Iterator[str]]


class Checks(Generic[Evidence]):
    """The checks of one kind of evidence, in the order in which they are made."""

    def __init__(self) -> None:
        self.all: list[ScriptCheck[Evidence]] = []

    def __call__(
        self, code: str, observation: str, mistake: str
    ) -> Callable[[Callable[[Evidence], Iterator[str]]], Callable[[Evidence], Iterator[str]]]:
        """Register a generator function as a check."""

        def register(
            mistakes: Callable[[Evidence], Iterator[str]],
        ) -> Callable[[Evidence], Iterator[str]]:
            self.all.append(ScriptCheck(code, observation, mistake, mistakes))
            return mistakes

        return register

    def failed(self, evidence: Evidence) -> Iterator[str]:
        """Yield a message for each mistake that a check finds."""
        for check in self.all:
            for mistake in check.mistakes(evidence):
                yield f"{check.code}: {mistake}"

    def table(self) -> list[str]:
        """Return a row of a Markdown table for each check."""
        return [
            f"| {f'`{check.code}`' if check.code in ACCEPTABLE else ''} | {check.observation} |"
            f" {check.mistake} |"
            for check in self.all
        ]


of_launch = Checks[Launched]()
of_worlds = Checks[Worlds]()


def table() -> list[str]:
    """Return the lines of a Markdown table of all checks."""
    return [
        "| word of `--accept` | observation | finds |",
        "|---|---|---|",
        *of_launch.table(),
        *of_worlds.table(),
    ]
