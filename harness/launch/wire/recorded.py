"""Messages of a training that measures itself to the program that writes its record.

Nobody of ours has started its ranks, so nothing goes the other way. What ranks left lies beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.cases import CaseSpec

#: The file of it.
FILE = "recorded.json"


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """``steps`` are those of the window with its warm-up, the ``cut``; the window lies between
    ``started_at`` and ``lasted_s`` later. ``results`` is where runs are kept, ``argv`` what was
    typed. ``missing`` says why ranks left nothing, by their numbers.
    """

    case: CaseSpec
    steps: int
    cut: int
    started_at: str
    lasted_s: float
    results: str
    argv: tuple[str, ...]
    missing: Mapping[str, str]
