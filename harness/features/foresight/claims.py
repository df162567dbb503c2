"""Audit a published table: check whether its figures are consistent within their rounding.

rows as stated -> figures, each with the ends of its rounding interval -> what follows from the
other figures -> findings

speedup = T1 / TN, or the ratio of throughputs; efficiency = speedup / (N / N1); 1 - efficiency >=
the stated share of communication in a step, because that share is lost; throughput = batch x length
/ step; MFU and FLOP/s grow as the throughput of a rank; days per trillion tokens = 10^12 /
throughput.

A table can have several usual meanings: strong or weak scaling, throughput of all ranks or of one,
a baseline inside or outside the table. A row is called inconsistent only if its figures contradict
each other in all of these meanings.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from harness.features.foresight.published.files import cell_value
from harness.features.foresight.published.headings import by_variant, field_name, is_result
from harness.features.foresight.published.measures import Unit, unit_of
from harness.features.foresight.published.reading import CONFIGURATION, NUMBERS, Fields, shape_of


@dataclass(frozen=True, kw_only=True)
class ClaimedFigure:
    """A printed number, which stands for any value in [low, high] that is rounded to it."""

    text: str
    low: float
    high: float
    #: The values of single launches, if the printed number is the mean of several launches.
    launches: tuple[float, ...] = ()

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


class ClaimedColumn(StrEnum):
    RANKS = "ranks"
    TIME = "time"
    THROUGHPUT = "throughput"
    SPEEDUP = "speedup"
    EFFICIENCY = "efficiency"
    COMMUNICATION = "communication"
    #: MFU or FLOP/s of a rank.
    UTILISATION = "utilisation"
    #: Days that the training on a trillion tokens takes.
    DAYS = "days"
    PARAMS = "params"
    #: The throughput that follows from the batch and the time of a step; no heading names it.
    FROM_STEP = "batch / step"


#: Patterns of column headings, from which units in brackets were removed. The names of fields that
#: ``published`` knows are accepted too.
NAMES: Mapping[ClaimedColumn, str] = {
    ClaimedColumn.RANKS: r"np|(num_?)?(gpu|rank|device|workers?|accelerators?|chips?)|world",
    ClaimedColumn.TIME: (
        r"t|time.*|seconds?.*|s|ms|epoch.*|s/epoch|step.*|(s|ms) (an?|per) (epoch|step)"
    ),
    ClaimedColumn.THROUGHPUT: r"throughput|rate",
    ClaimedColumn.SPEEDUP: r"speed[ -]?up|x|(strong |weak )?scaling( factor)?",
    ClaimedColumn.EFFICIENCY: r"eff\.?|(scaling |parallel )?efficiency",
    ClaimedColumn.COMMUNICATION: r"comm\.?|communication.*|(comm|communication) (share|overhead)",
}


_OF_UNIT = {
    Unit.STEP: ClaimedColumn.TIME,
    Unit.TOKENS: ClaimedColumn.THROUGHPUT,
    Unit.SAMPLES: ClaimedColumn.THROUGHPUT,
    Unit.FLOPS: ClaimedColumn.UTILISATION,
    Unit.MFU: ClaimedColumn.UTILISATION,
}
#: Names of batches that may be those of one rank or of all.
_OF_WHOM = ("batch", "batch_size")
#: Relative difference of two measured columns that does not count, because they may be means over
#: different steps.
_MEANS = 0.05


class ClaimStatus(StrEnum):
    CONSISTENT = "consistent"
    INCONSISTENT = "inconsistent"
    UNCHECKABLE = "uncheckable"


@dataclass(frozen=True, kw_only=True)
class ClaimFinding:
    """The findings on one row.

    ``why`` has a sentence for each figure that does not follow from the others, or states what is
    missing. ``kind`` is what the times measure; rows of different kinds are never compared.
    ``speedup`` and ``efficiency`` are the intervals that the row's times imply, relative to the
    smallest row of its kind, within the rounding of its digits. ``between_launches`` is the 95 %
    interval of the speedup, if both rows list the times of their launches.
    """

    row: str
    status: ClaimStatus
    why: tuple[str, ...]
    checked: tuple[str, ...]
    kind: str = ""
    speedup: tuple[float, float] | None = None
    efficiency: tuple[float, float] | None = None
    between_launches: tuple[float, float] | None = None


Row = Mapping[ClaimedColumn, ClaimedFigure]
#: Powers of ten beyond which a figure must be a typing error.
MOST_DIGITS = 300
#: Fields that may differ between the rows of one scaling sweep, because they grow with the ranks or
#: state the origin of a row.
_GROWING = frozenset(name for what in ("nodes", "data", "global_batch") for name in NUMBERS[what])
_OF_NO_CONSEQUENCE = _GROWING | frozenset(
    [
        "id", "source", "note", "notes", "log", "file", "path", "url", "run", "runs", "name",
        "comment", "kind", "launches",
    ]
)  # fmt: skip
#: Relative difference of numbers that rounding to whole samples explains.
_ALIKE = 0.01
#: Largest plausible efficiency. If the times of a table give a higher one, the assumed meaning of
#: the table is wrong.
_MOST_EFFICIENT = 1.1
#: Fields that state which configuration was run.
_CONFIGURING = ("model", *NUMBERS["seq"], *CONFIGURATION)
#: Seconds per unit, for times whose cell states its unit.
SECONDS: Mapping[str, float] = {
    "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "hour": 3600.0,
    "d": 86_400.0,
}  # fmt: skip


def column(name: str) -> ClaimedColumn | None:
    """Return the column that a heading names, or None."""
    field = field_name(name).lower()
    if field in NUMBERS["ranks"]:
        return ClaimedColumn.RANKS
    if field in NUMBERS["params"]:
        return ClaimedColumn.PARAMS
    if (known_unit := unit_of(field)) is not None:
        return _OF_UNIT[known_unit[0]]
    if field == "days_per_trillion_tokens":
        return ClaimedColumn.DAYS
    bare = re.sub(r"[\[(].*?[\])]", "", name).strip().lower().replace("_", " ").replace("  ", " ")
    for known, pattern in NAMES.items():
        if re.fullmatch(pattern.replace("_?", "[ _]?"), bare):
            return known
    return None


def figure(text: str, of: ClaimedColumn) -> ClaimedFigure | None:
    """Return the interval of values that are printed like this, or None if the text has no number.

    Examples are ``1.95x``, ``97.6 %`` and ``1,234``. Efficiencies and shares are fractions; a value
    above 1.5 is taken as percent.
    """
    closed = re.sub(r"(?<=\d)[ \u00a0\u202f](?=\d{3}(?!\d))", "", text)  # 181 384
    if of is ClaimedColumn.RANKS and not _COUNT.fullmatch(closed.strip("*_` ")):
        return None  # a device's name, such as H200
    match = re.search(r"-?\d[\d,']*(?:\.(\d+))?(?:e([+-]?\d+))?", closed.lower())
    # a duration such as 1:08:40 must not be read as 1, nor a product such as 62.65*2 as 62.65
    if match is None or re.search(r"\d:\d\d|\d\s*\\?[*×]\s*\d", text):
        return None
    bare = re.sub(r"[,']", "", match[0])
    digits = int(match[2] or 0) - len(match[1] or "")
    half = 0.5 * 10.0 ** (digits + _unwritten(bare)) if abs(digits) < MOST_DIGITS else math.inf
    half = 0.0 if of is ClaimedColumn.RANKS else half
    share = of in (ClaimedColumn.EFFICIENCY, ClaimedColumn.COMMUNICATION)
    value = float(bare)
    scale = 0.01 if share and ("%" in text or value > 1.5) else 1.0
    if of is ClaimedColumn.TIME:
        scale = SECONDS.get(unit_in(text), 1.0)
    if of in (ClaimedColumn.THROUGHPUT, ClaimedColumn.PARAMS):
        suffix = re.match(r"\s*([kmb])(?![a-z])", closed.lower()[match.end() :])
        scale = {"k": 1e3, "m": 1e6, "b": 1e9}[suffix[1]] if suffix else 1.0
    low, high = (value - half) * scale, (value + half) * scale
    return ClaimedFigure(text=text.strip(), low=low, high=high)


#: A number of ranks, with or without the kind of device: ``8``, ``8x V100``, ``16 GPUs``.
_COUNT = re.compile(r"-?\d[\d,]*(\.\d+)?\s*[x×]?\s*([A-Za-z][\w-]*\s*){0,3}")
#: Number of digits of a whole number that are never taken for rounding.
_WRITTEN = 3


def _unwritten(bare: str) -> int:
    """Return the number of trailing zeros of a whole number that rounding may have made."""
    if not bare.lstrip("-").isdigit():
        return 0
    zeros = len(bare) - len(bare.rstrip("0"))
    return max(0, min(zeros, len(bare.lstrip("-")) - _WRITTEN))


def unit_in(text: str) -> str:
    """Return the unit after a cell's number as a key of ``SECONDS``, or an empty string."""
    match = re.search(r"\d\s*([a-z]+)\.?\s*$", text.strip().lower())
    if match is None:
        return ""
    word = match[1]
    return next((unit for unit in (word, word.rstrip("s"), word[:3]) if unit in SECONDS), "")


def contradictions(table: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each row whose figures contradict other figures of the table."""
    stated = stated_table(table)
    if any(nonsense(row) for row in stated.rows):
        return []
    return [
        f"{finding.row}: its figures contradict each other: {why}"
        for finding in audit(stated.rows, stated.kinds, stated.names, stated.doubts)
        for why in finding.why
        if finding.status is ClaimStatus.INCONSISTENT
    ]


@dataclass(frozen=True, kw_only=True)
class StatedTable:
    """The figures of a table's rows, with the kind and the name of each row.

    ``doubts`` maps each kind whose rows may belong to several scaling sweeps to the reason.
    """

    rows: Sequence[Row]
    kinds: Sequence[str]
    names: Sequence[str]
    doubts: Mapping[str, str]


def stated_table(table: Mapping[str, Any]) -> StatedTable:
    """Return the figures of a table.

    The kind of a row is what the row states, or else its configuration. Rates of one rank are
    multiplied by the ranks. If batches are stated, the time of a step is divided by its samples,
    because a step with more samples takes longer without being slower.
    """
    given = _unmerged(table["points"])
    stated_kinds = any(str(point.get("kind") or "").strip() for point in given)
    points = given if stated_kinds else by_variant(given)
    about = {
        key: value
        for key, value in table.items()
        if not isinstance(value, dict | list) or key == "model"
    }
    rows = [_stated_row(point, about) for point in points]
    kinds = [str(point.get("kind") or "").strip() for point in points]
    names = [str(point.get("name") or "").strip() for point in points]
    doubts: dict[str, str] = {}
    if not stated_kinds:
        pairs = zip(kinds, _configurations(points), strict=True)
        kinds = _divided(rows, points, [", ".join(filter(None, pair)) for pair in pairs])
        for kind in dict.fromkeys(kinds):
            of_kind = [number for number, of_row in enumerate(kinds) if of_row == kind]
            of_rows = [rows[number] for number in of_kind]
            doubt = _several_ladders(of_rows, [points[number] for number in of_kind])
            doubt = doubt or _foreign_baseline(of_rows, rows)
            doubts |= {kind: doubt} if doubt else {}
    return StatedTable(rows=rows, kinds=kinds, names=names, doubts=doubts)


def _divided(
    rows: Sequence[Row], points: Sequence[Mapping[str, Any]], kinds: Sequence[str]
) -> list[str]:
    """Return the kinds of rows, after columns that are not understood have divided the ladders.

    Such a column divides the rows of a kind if it is constant within each ladder, so that the ranks
    of each ladder only grow or only shrink, and each ladder has a smallest row of its own. If that
    does not suffice, columns that usually grow with the ranks, such as a batch, divide them as
    well.
    """
    divided = list(kinds)
    for kind in dict.fromkeys(kinds):
        members = [number for number, of_row in enumerate(kinds) if of_row == kind]
        of_kind = [rows[n] for n in members], [points[n] for n in members]
        for ignored in (_OF_NO_CONSEQUENCE, _OF_NO_CONSEQUENCE - _GROWING):
            parts = _parts(*of_kind, ignored)
            ladders = [
                [number for number, of_row in zip(members, parts, strict=True) if of_row == part]
                for part in dict.fromkeys(parts)
            ]
            if all(_is_ladder([rows[n] for n in x], [points[n] for n in x]) for x in ladders):
                for number, part in zip(members, parts, strict=True):
                    divided[number] = ", ".join(filter(None, [kind, part]))
                break
    return divided


def _parts(
    rows: Sequence[Row], points: Sequence[Mapping[str, Any]], ignored: Collection[str]
) -> list[str]:
    """Return the values of each row in the columns that divide the rows, as text."""
    fields = _dividing(rows, points, ignored)
    cells = map(_by_field, points)
    return [", ".join(f"{text} {cell.get(f)}" for f, text in fields.items()) for cell in cells]


def _is_ladder(rows: Sequence[Row], points: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether rows certainly are one scaling sweep with its own base."""
    return not _several_ladders(rows, points) and _has_base(rows)


def _has_base(rows: Sequence[Row]) -> bool:
    """Return whether a ladder has several rows, and its speedups are relative to its own base."""
    known = [row for row in rows if ClaimedColumn.RANKS in row]
    if len(known) < 2:
        return False
    base = min(known, key=lambda row: row[ClaimedColumn.RANKS].middle)
    relative = [base[name] for name in (ClaimedColumn.SPEEDUP, ClaimedColumn.EFFICIENCY)
                if name in base]  # fmt: skip
    return all(stated.low <= 1.0 <= stated.high for stated in relative)


def _by_field(point: Mapping[str, Any]) -> dict[str, Any]:
    return {field_name(str(name)).lower(): cell for name, cell in point.items()}


def _dividing(
    rows: Sequence[Row],
    points: Sequence[Mapping[str, Any]],
    ignored: Collection[str] = _OF_NO_CONSEQUENCE,
) -> dict[str, str]:
    """Return the columns in which rows differ and that are not understood: field -> heading.

    Columns of other results, such as a loss, are left out, and so are numbers that are divided
    among the ranks or grow with them, such as the batch of a rank in strong scaling.
    """
    headings = {field_name(str(name)).lower(): str(name).strip("* ") for p in points for name in p}
    cells = list(map(_by_field, points))
    return {
        field: heading
        for field, heading in headings.items()
        if column(heading) is None
        and field not in ignored
        and not is_result(heading)
        and len({str(cell.get(field)) for cell in cells}) > 1
        and not _follows_ranks([cell.get(field) for cell in cells], rows)
    }


def _follows_ranks(values: Sequence[Any], rows: Sequence[Row]) -> bool:
    """Return whether a number times the ranks, or divided by them, is the same in all rows."""
    numbers = [figure(str(value), ClaimedColumn.RANKS) for value in values]
    pairs = [
        (number.middle, row[ClaimedColumn.RANKS].middle)
        for number, row in zip(numbers, rows, strict=True)
        if number is not None and ClaimedColumn.RANKS in row
    ]
    if len(pairs) < len(values) or not all(value > 0 and ranks > 0 for value, ranks in pairs):
        return False
    products = [value * ranks for value, ranks in pairs]
    ratios = [value / ranks for value, ranks in pairs]
    return any(max(x) <= min(x) * (1 + _ALIKE) for x in (products, ratios))


def _several_ladders(rows: Sequence[Row], points: Sequence[Mapping[str, Any]]) -> str:
    """Return why rows may belong to several scaling sweeps, or an empty string.

    They certainly belong to one if their ranks only grow or only shrink from row to row, at most
    one row has a speedup of 1, and every unknown column is the same in all rows.
    """
    differing = list(_dividing(rows, points).values())
    if differing:
        listed = ", ".join(map(repr, differing))
        return f"they differ in {listed}, which {'are' if differing[1:] else 'is'} not understood"
    ranks = [row[ClaimedColumn.RANKS].middle for row in rows if ClaimedColumn.RANKS in row]
    steps = [after - before for before, after in itertools.pairwise(ranks)]
    if any(step <= 0 for step in steps) and any(step >= 0 for step in steps):
        return "their ranks neither only grow nor only shrink from row to row"
    speedups = [row[ClaimedColumn.SPEEDUP] for row in rows if ClaimedColumn.SPEEDUP in row]
    if sum(speedup.low <= 1.0 <= speedup.high for speedup in speedups) > 1:
        return "several rows have a speedup of 1"
    return ""


def _foreign_baseline(rows: Sequence[Row], of_table: Sequence[Row]) -> str:
    """Return a sentence if speedups are relative to a row of another sweep, or an empty string.

    ``of_table`` are the rows of all sweeps of the table.
    """
    known = [row for row in rows if ClaimedColumn.RANKS in row]
    base = min(known, key=lambda row: row[ClaimedColumn.RANKS].middle, default={})
    speedup = base.get(ClaimedColumn.SPEEDUP)
    if speedup is None or speedup.low <= 1.0 <= speedup.high:
        return ""
    elsewhere = any(
        row.get(ClaimedColumn.RANKS) == base[ClaimedColumn.RANKS]
        and (stated := row.get(ClaimedColumn.SPEEDUP)) is not None
        and stated.low <= 1.0 <= stated.high
        for row in of_table
    )
    for row in known if not elsewhere else ():
        stated = row.get(ClaimedColumn.SPEEDUP)
        follows = [] if row is base or stated is None else _measured(row, base)
        if stated is not None and any(x <= stated.high and stated.low <= y for x, y, _ in follows):
            return ""  # the other rows are relative to the smallest one
    return (
        f"the speedup of its smallest row is {speedup.text}, so speedups are relative to a row of"
        " another sweep"
    )


def _stated_row(point: Mapping[str, Any], about: Mapping[str, Any]) -> Row:
    row: dict[ClaimedColumn, ClaimedFigure] = {}
    names: dict[ClaimedColumn, str] = {}
    launches = next(
        (value for key, value in point.items() if str(key).strip().lower() == "launches"), None
    )
    if (mean := mean_of(launches)) is not None:
        row[ClaimedColumn.TIME] = mean
    for name, cell in point.items():
        known = column(str(name))
        if known is None or known in row or isinstance(cell, dict | list | None):
            continue
        if known is ClaimedColumn.COMMUNICATION and _is_time(str(name), str(cell)):
            continue  # not a share of the step
        if (stated := figure(str(cell), known)) is not None:
            row[known] = stated
            names[known] = field_name(str(name))
    if ClaimedColumn.THROUGHPUT not in row and ClaimedColumn.UTILISATION in row:
        row[ClaimedColumn.THROUGHPUT] = row.pop(ClaimedColumn.UTILISATION)
        names[ClaimedColumn.THROUGHPUT] = names[ClaimedColumn.UTILISATION]
    rate = unit_of(names.get(ClaimedColumn.THROUGHPUT, ""), str(about.get("metric", "")))
    ranks = row.get(ClaimedColumn.RANKS)
    if rate is not None and rate[1] and ranks is not None:
        stated = row[ClaimedColumn.THROUGHPUT]
        row[ClaimedColumn.THROUGHPUT] = _scaled(stated, ranks.middle, f"{ranks.text} x ")
    if rate is None or rate[0] is not Unit.TOKENS:
        row.pop(ClaimedColumn.DAYS, None)
    samples = _samples(point, about) if unit_of(names.get(ClaimedColumn.TIME, "")) else None
    if samples:
        step = row[ClaimedColumn.TIME]
        row[ClaimedColumn.TIME] = _scaled(step, 1 / samples, f"1/{samples:g} x ")
        ambiguous = any(field_name(str(name)).lower() in _OF_WHOM for name in point)
        of_step = None if rate is None or ambiguous else _work(point, about, samples, rate[0])
        if of_step:
            scale = _scale_of(names[ClaimedColumn.TIME])
            row[ClaimedColumn.FROM_STEP] = ClaimedFigure(
                text=f"{of_step:g} / {step.text}",
                low=of_step / (step.high * scale),
                high=of_step / (step.low * scale),
            )
    return row


def _work(
    point: Mapping[str, Any], about: Mapping[str, Any], samples: float, unit: Unit
) -> float | None:
    """Return the samples or tokens of a step, or None if the length of a sample is not stated."""
    if unit is Unit.SAMPLES:
        return samples
    cells = {field_name(str(name)): cell_value(cell) for name, cell in point.items()}
    seq = Fields(shared=about).number(cells, "seq", "")
    return samples * seq if unit is Unit.TOKENS and seq else None


def _scale_of(heading: str) -> float:
    """Return the seconds that a unit of the time in a heading stands for."""
    return 1e-3 if heading.endswith("ms") else 1.0


def _is_time(heading: str, cell: str) -> bool:
    return bool(unit_in(cell)) or bool(re.search(r"time|\bm?s\b|seconds", heading.lower()))


def _scaled(stated: ClaimedFigure, factor: float, shown: str) -> ClaimedFigure:
    low, high = stated.low * factor, stated.high * factor
    return ClaimedFigure(text=f"{shown}{stated.text}", low=low, high=high)


def _samples(point: Mapping[str, Any], about: Mapping[str, Any]) -> float | None:
    """Return the samples of a step, or None if no batch is stated or it does not fit the ranks."""
    fields = Fields(shared=about)
    cells = {field_name(str(name)): cell_value(cell) for name, cell in point.items()}
    batches = ("micro_batch", "global_batch", "replica_batch", "global_tokens")
    try:
        if all(fields.number(cells, batch, "") is None for batch in batches):
            return None
        return shape_of(cells, fields, "").samples
    except ValueError:
        return None


def _unmerged(points: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, with each empty configuration cell filled from the row above."""
    filled: list[dict[str, Any]] = []
    for point in points:
        above = filled[-1] if filled else {}
        filled.append(
            {
                name: above.get(name)
                if cell in (None, "") and str(name).lower() in _CONFIGURING
                else cell
                for name, cell in point.items()
            }
        )
    return filled


def _configurations(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the configuration of each row, described by the fields in which rows differ."""
    cells = [{str(key).lower(): value for key, value in point.items()} for point in points]
    unlike = [name for name in _CONFIGURING if len({str(cell.get(name)) for cell in cells}) > 1]
    return [", ".join(f"{name} {cell[name]}" for name in unlike if name in cell) for cell in cells]


def mean_of(cell: Any) -> ClaimedFigure | None:
    """Return the mean of times such as ``25.97 28.74 27.61``, with the interval of
    their rounding.
    """
    words = cell if isinstance(cell, list) else str(cell or "").split()
    shown = [figure(str(word), ClaimedColumn.TIME) for word in words]
    known = [launch for launch in shown if launch is not None]
    if not known:
        return None
    low = math.fsum(launch.low for launch in known) / len(known)
    high = math.fsum(launch.high for launch in known) / len(known)
    text = f"{(low + high) / 2:.4g}, the mean of {len(known)} launches"
    launches = tuple(launch.middle for launch in known)
    return ClaimedFigure(text=text, low=low, high=high, launches=launches)


def between_launches(row: Row, base: Row) -> tuple[float, float] | None:
    """Return Welch's 95 % interval of the ratio of two mean times over launches.

    It is computed from the logarithms of the times. Return None if a row has fewer than two
    launches.
    """
    ours = row.get(ClaimedColumn.TIME)
    theirs = base.get(ClaimedColumn.TIME)
    if ours is None or theirs is None or min(len(ours.launches), len(theirs.launches)) < 2:
        return None
    # the import takes a second, which other commands need not pay
    from scipy.stats import ttest_ind

    logs = [[math.log(value) for value in mean.launches] for mean in (theirs, ours)]
    test = ttest_ind(*logs, equal_var=False)
    ends = test.confidence_interval(0.95)
    return float(math.exp(ends.low)), float(math.exp(ends.high))


def audit(
    rows: Sequence[Row],
    kinds: Sequence[str] = (),
    names: Sequence[str] = (),
    doubts: Mapping[str, str] = MappingProxyType({}),
) -> list[ClaimFinding]:
    """Check every row against the smallest one of its kind, and against itself.

    If several rows have as many ranks (such as two machines), the first one is the reference. Rows
    of a kind that may belong to several scaling sweeps (``doubts``) are not compared.
    """
    of = list(kinds) or [""] * len(rows)
    called = list(names) or [""] * len(rows)
    bases: dict[str, Row] = {}
    for kind in dict.fromkeys(of):
        known = [
            r for r, key in zip(rows, of, strict=True) if key == kind and ClaimedColumn.RANKS in r
        ]
        if known:
            bases[kind] = min(known, key=lambda row: row[ClaimedColumn.RANKS].middle)
    findings = []
    for number, (row, kind, name) in enumerate(zip(rows, of, called, strict=True), 1):
        base = bases.get(kind)
        if doubt := doubts.get(kind):
            findings.append(_uncertain(row, number, kind, name, doubt))
            continue
        finding = replace(_finding(row, base, number), kind=kind)
        finding = replace(finding, row=name or finding.row)
        times = [] if base is None or ClaimedColumn.RANKS not in row else _measured(row, base)
        if base is not None and times:
            low, high, _ = times[0]
            ratio = row[ClaimedColumn.RANKS].middle / base[ClaimedColumn.RANKS].middle
            ends = (low / ratio, high / ratio)
            scatter = None if row is base else between_launches(row, base)
            finding = replace(finding, speedup=(low, high), between_launches=scatter)
            if row is base or ratio > 1:
                finding = replace(finding, efficiency=ends)
        findings.append(finding)
    for kind, base in bases.items():
        members = [number for number, of_row in enumerate(of) if of_row == kind]
        if any(findings[number].status is ClaimStatus.INCONSISTENT for number in members):
            honest = _honest_reading([rows[number] for number in members], base)
            for number in members if honest else ():
                if findings[number].status is ClaimStatus.INCONSISTENT:
                    finding = findings[number]
                    stated = finding.why if "several sizes" in honest else ()
                    findings[number] = ClaimFinding(
                        row=finding.row,
                        status=ClaimStatus.UNCHECKABLE,
                        why=(*stated, honest),
                        checked=(),
                        kind=kind,
                    )
    return findings


def _honest_reading(rows: Sequence[Row], base: Row) -> str:
    """Return the other usual meaning of the table in which all its figures agree, or an empty
    string.
    """
    base_ranks = base[ClaimedColumn.RANKS].middle
    ranks = [row[ClaimedColumn.RANKS].middle if ClaimedColumn.RANKS in row else 0 for row in rows]
    if 0 in ranks:
        return ""
    weak = [
        _rescaled(row, ClaimedColumn.TIME, (base_ranks / n, base_ranks / n))
        for row, n in zip(rows, ranks, strict=True)
    ]
    of_one_rank = [
        _rescaled(row, ClaimedColumn.THROUGHPUT, (n, n)) for row, n in zip(rows, ranks, strict=True)
    ]
    readings = [
        (weak, "if each rank has the same work in all rows (weak scaling); add the columns"
         " 'step_ms' and 'global_batch' to have them checked"),
        (of_one_rank, "if the throughput is that of one rank; name the column as in"
         " 'samples_per_second_per_gpu' to have it checked"),
        (_without_utilisation(rows), "if the rows train models of several sizes; add a column"
         " 'params' to have their utilisation checked"),
        (_other_baseline(rows, base), "if their baseline is not in this table;"
         " add that baseline as the smallest row to have them checked"),
    ]  # fmt: skip
    for as_meant, when in readings:
        first = as_meant[rows.index(base)]
        too_fast = any(
            low * base_ranks / n > _MOST_EFFICIENT
            for row, n in zip(as_meant, ranks, strict=True)
            for low, _, _ in _measured(row, first)
        )
        if not too_fast and not any(
            _finding(row, first, number).status is ClaimStatus.INCONSISTENT
            for number, row in enumerate(as_meant)
        ):
            return f"its figures do not follow from those of the smallest row, but they do {when}"
    return ""


def _without_utilisation(rows: Sequence[Row]) -> list[Row]:
    """Return the rows without their utilisation, unless each of them states its parameters."""
    if all(ClaimedColumn.PARAMS in row for row in rows):
        return list(rows)
    return [
        {name: stated for name, stated in row.items() if name is not ClaimedColumn.UTILISATION}
        for row in rows
    ]


def _other_baseline(rows: Sequence[Row], base: Row) -> list[Row]:
    """Return the rows relative to another baseline, if one common factor explains all deviations.

    A value of the smallest row that differs from 1 shows another baseline, and the factor then
    applies to all rows. Otherwise it applies only to the rows that deviate, and at least two rows
    must deviate.
    """
    corrected = list(rows)
    for name in (ClaimedColumn.SPEEDUP, ClaimedColumn.EFFICIENCY):
        factors: dict[int, tuple[float, float]] = {}
        for number, row in enumerate(rows):
            measured = [(1.0, 1.0, "")] if row is base else _measured(row, base)
            if name not in row or not measured or min(measured[0][:2]) <= 0:
                continue
            ratio = row[ClaimedColumn.RANKS].middle / base[ClaimedColumn.RANKS].middle
            scale = ratio if name is ClaimedColumn.EFFICIENCY else 1.0
            low, high, _ = measured[0]
            factors[number] = (row[name].low / high * scale, row[name].high / low * scale)
        off = {number: ends for number, ends in factors.items() if not ends[0] <= 1 <= ends[1]}
        everywhere = rows.index(base) in off
        shared = factors.values() if everywhere else off.values()
        factor = (
            max((low for low, _ in shared), default=1.0),
            min((high for _, high in shared), default=1.0),
        )
        if factor[0] > factor[1] or factor[0] <= 0 or not (everywhere or len(off) > 1):
            continue
        for number in range(len(rows)) if everywhere else off:
            inverse = (1 / factor[1], 1 / factor[0])
            corrected[number] = _rescaled(corrected[number], name, inverse)
    return corrected


def _rescaled(row: Row, name: ClaimedColumn, factor: tuple[float, float]) -> Row:
    """Return the row with one figure multiplied by a factor, which is an interval."""
    if name not in row:
        return row
    stated = row[name]
    low, high = stated.low * factor[0], stated.high * factor[1]
    return {**row, name: replace(stated, low=low, high=high)}


def _uncertain(row: Row, number: int, kind: str, name: str, doubt: str) -> ClaimFinding:
    why = (
        f"its rows may belong to several scaling sweeps: {doubt}; give one table per sweep, or a"
        " column 'kind' that names the sweep of each row, to have them checked"
    )
    return ClaimFinding(
        row=name or _row_name(row, number),
        status=ClaimStatus.UNCHECKABLE,
        why=(why,),
        checked=(),
        kind=kind,
    )


def _row_name(row: Row, number: int) -> str:
    return (
        f"{row[ClaimedColumn.RANKS].text} ranks" if ClaimedColumn.RANKS in row else f"row {number}"
    )


def nonsense(row: Row) -> str:
    """Return a figure of the row that is impossible for any training run, or an empty string."""
    for name, stated in row.items():
        positive = name in (ClaimedColumn.RANKS, ClaimedColumn.TIME, ClaimedColumn.THROUGHPUT)
        if not math.isfinite(stated.low + stated.high) or stated.middle < 0:
            return f"{name} {stated.text}"
        if positive and stated.middle == 0:
            return f"{name} {stated.text}"
        if name is ClaimedColumn.RANKS and stated.middle != int(stated.middle):
            return f"{name} {stated.text}"
    return ""


def _finding(row: Row, base: Row | None, number: int) -> ClaimFinding:
    name = _row_name(row, number)
    if base is None or ClaimedColumn.RANKS not in row:
        return ClaimFinding(
            row=name,
            status=ClaimStatus.UNCHECKABLE,
            why=("the number of ranks is missing",),
            checked=(),
        )
    wrong, checked = [], []
    for what, stated, low, high, how in _follows(row, base):
        checked.append(f"{what} = {how}")
        truncated = stated.high + (stated.high - stated.low) / 2  # 6.37 for 6.376
        if truncated < low - 1e-12 or stated.low > high + 1e-12:
            off = stated.middle / ((low + high) / 2) - 1
            ends = f"{low:.4g} to {high:.4g}"
            wrong.append(f"{what} {stated.text} is {100 * off:+.1f}% off: {how} gives {ends}")
    wrong += _hidden(row, base, checked)
    if wrong:
        return ClaimFinding(
            row=name, status=ClaimStatus.INCONSISTENT, why=tuple(wrong), checked=tuple(checked)
        )
    if not checked:
        missing = _missing(row, base)
        return ClaimFinding(row=name, status=ClaimStatus.UNCHECKABLE, why=(missing,), checked=())
    return ClaimFinding(row=name, status=ClaimStatus.CONSISTENT, why=(), checked=tuple(checked))


def _follows(row: Row, base: Row) -> Iterator[tuple[str, ClaimedFigure, float, float, str]]:
    """Yield each figure of a row that follows from other figures.

    An item is (name, stated figure, lowest and highest value that follow, derivation).
    """
    ratio = row[ClaimedColumn.RANKS].middle / base[ClaimedColumn.RANKS].middle
    speedup = row.get(ClaimedColumn.SPEEDUP)
    if row is base and speedup is not None:
        yield "speedup", speedup, 1.0, 1.0, "the smallest row over itself"
    yield from _of_one_run(row, base, ratio)
    measured = _measured(row, base)
    if speedup is not None and row is not base:
        for low, high, how in measured:
            yield "speedup", speedup, low, high, how
    efficiency = row.get(ClaimedColumn.EFFICIENCY)
    if efficiency is None:
        return
    if speedup is not None:
        how = f"speedup / {ratio:g}"
        yield "efficiency", efficiency, speedup.low / ratio, speedup.high / ratio, how
        return  # it may be computed from the rounded speedup
    for low, high, how in measured:
        yield "efficiency", efficiency, low / ratio, high / ratio, f"{how} / {ratio:g}"


def _of_one_run(
    row: Row, base: Row, ratio: float
) -> Iterator[tuple[str, ClaimedFigure, float, float, str]]:
    """Yield figures that follow from other measurements of the same run, as ``_follows`` does."""
    rate = row.get(ClaimedColumn.THROUGHPUT)
    if rate is None or rate.low <= 0:
        return
    if (of_step := row.get(ClaimedColumn.FROM_STEP)) is not None:
        low, high = of_step.low * (1 - _MEANS), of_step.high * (1 + _MEANS)
        yield "throughput", rate, low, high, of_step.text
    if (days := row.get(ClaimedColumn.DAYS)) is not None:
        low, high = (1e12 / 86_400 / end for end in (rate.high, rate.low))
        yield "days", days, low * (1 - _MEANS), high * (1 + _MEANS), f"10^12 / {rate.text} s"
    used, of_base = (x.get(ClaimedColumn.UTILISATION) for x in (row, base))
    if row.get(ClaimedColumn.PARAMS) != base.get(ClaimedColumn.PARAMS):
        return  # a larger model has more FLOPs for each token
    first = base.get(ClaimedColumn.THROUGHPUT)
    if row is not base and used is not None and of_base is not None and first is not None:
        low = of_base.low * rate.low / first.high / ratio * (1 - _MEANS)
        high = of_base.high * rate.high / first.low / ratio * (1 + _MEANS)
        how = f"{of_base.text} x ({rate.text} / {first.text}) / {ratio:g}"
        yield "utilisation", used, low, high, how


def _measured(row: Row, base: Row) -> list[tuple[float, float, str]]:
    """Return the speedups that times and throughputs imply, as (lowest, highest, derivation)."""
    points = []
    if ClaimedColumn.TIME in row and ClaimedColumn.TIME in base:
        figure = base[ClaimedColumn.TIME]
        b = row[ClaimedColumn.TIME]
        points.append((figure.low / b.high, figure.high / b.low, f"{figure.text} / {b.text}"))
    if ClaimedColumn.THROUGHPUT in row and ClaimedColumn.THROUGHPUT in base:
        figure = base[ClaimedColumn.THROUGHPUT]
        b = row[ClaimedColumn.THROUGHPUT]
        points.append((b.low / figure.high, b.high / figure.low, f"{b.text} / {figure.text}"))
    return [(1.0, 1.0, how) for _, _, how in points] if row is base else points


def _hidden(row: Row, base: Row, checked: list[str]) -> Iterator[str]:
    """Yield sentences about communication that takes a larger share than the efficiency allows.

    The stated share of communication in a step is lost, so it cannot exceed 1 - efficiency.
    """
    communication = row.get(ClaimedColumn.COMMUNICATION)
    ratio = row[ClaimedColumn.RANKS].middle / base[ClaimedColumn.RANKS].middle
    best = [(low / ratio, how) for low, _, how in _measured(row, base)]
    if ClaimedColumn.SPEEDUP in row:
        best.append((row[ClaimedColumn.SPEEDUP].low / ratio, "the speedup"))
    if ClaimedColumn.EFFICIENCY in row:
        best.append((row[ClaimedColumn.EFFICIENCY].low, "the efficiency"))
    if communication is None or not best or row is base:
        return
    checked.append("communication <= 1 - efficiency")
    for efficiency, how in best:
        if communication.low > 1 - efficiency:
            lost = 100 * (1 - efficiency)
            stated = f"communication {communication.text}"
            yield f"{stated} is more than the {lost:.1f}% that {how} leaves"


def unexplained(row: Row, base: Row) -> float | None:
    """Return the share of the ideal speed that a row loses beyond its stated communication."""
    communication = row.get(ClaimedColumn.COMMUNICATION)
    measured = _measured(row, base)
    if communication is None or not measured or row is base:
        return None
    ratio = row[ClaimedColumn.RANKS].middle / base[ClaimedColumn.RANKS].middle
    low, high, _ = measured[0]
    return 1 - (low + high) / 2 / ratio - communication.middle


def _missing(row: Row, base: Row) -> str:
    if row is base:
        return "the smallest row, with which the other rows are compared"
    has = {column for column in row if column is not ClaimedColumn.RANKS}
    if not has:
        return "only the number of ranks is stated"
    if _measured(row, base):
        return "the row states no figure that its times could contradict"
    want = "a time or a throughput here and in the smallest row"
    return f"only {', '.join(sorted(has))} is stated: it can be checked with {want}"
