"""Format the scores of predictions: one headline, one row per table, one row per size."""

from collections.abc import Sequence

from harness.features.foresight.held_out import Evaluation, Score
from harness.features.foresight.learned import Regime
from harness.features.foresight.prediction import Predicted, Prediction
from harness.features.foresight.published.table import Refused
from harness.interface.report import text
from harness.interface.report.text import Column


def lines(evaluation: Evaluation, refused: Sequence[Refused], sizes: bool, width: int) -> list[str]:
    """Return the headline, the tables, and with ``sizes`` every target."""
    shown = [line for sentence in _headline(evaluation) for line in text.wrap(sentence, width, 1)]
    if evaluation.tables:
        shown += ["", *text.table(_SCORES, [*evaluation.tables, *_together(evaluation)], width)]
    if sizes:
        for prediction in evaluation.predictions:
            shown += _sizes(prediction, width)
    shown += _refusals(evaluation, refused, width)
    return shown


def _headline(evaluation: Evaluation) -> list[str]:
    whole = evaluation.whole
    if whole is None:
        num = sum(len(prediction.predicted) for prediction in evaluation.predictions)
        return [f" {num} sizes predicted, none with a measured value to compare with"]
    moved = [table for table in evaluation.tables if table.has_skill is not None]
    better = sum(bool(score.has_skill) for score in moved)
    shown = [
        f" {whole.num} sizes predicted: mean error {_points(whole.mean)} points,"
        f" at most {_points(whole.p90)} in 9 of 10, worst {_points(whole.worst)}",
        f" 80 % intervals contain {whole.coverage:.0%} of them, mean width"
        f" ±{_points(whole.half_width)} points",
    ]
    if moved:
        shown.append(
            f" mean error below that of the best law in N alone in {better} of {len(moved)} tables"
            f" whose efficiency changes"
        )
    if whole.revealed:
        shown.append(
            f" limiter correct in {whole.named} of {whole.revealed} sizes whose profile shows it"
        )
    return shown


def _together(evaluation: Evaluation) -> list[Score]:
    """Return the row for all tables together, if there are several."""
    return [evaluation.whole] if evaluation.whole and len(evaluation.tables) > 1 else []


def _points(value: float) -> str:
    return f"{100 * value:.1f}"


_SCORES: list[Column[Score]] = [
    Column("table", 9, lambda s: s.name, left=True),
    Column("sizes", 6, lambda s: str(s.num)),
    Column("up to", 4, lambda s: f"{s.reach:.0f}x" if s.reach > 1 else "1x"),
    Column("moves", 3, lambda s: _points(s.moves)),
    Column("mean", 9, lambda s: _points(s.mean)),
    Column("p90", 5, lambda s: _points(s.p90)),
    Column("worst", 8, lambda s: _points(s.worst)),
    Column("in 80%", 8, lambda s: f"{s.coverage:.0%}"),
    Column("±", 7, lambda s: _points(s.half_width)),
    Column(
        "best law",
        6,
        lambda s: f"{s.best_baseline} {_points(s.baselines[s.best_baseline])}",
    ),
]


def _sizes(prediction: Prediction, width: int) -> list[str]:
    table = prediction.table
    known = sorted({point.shape.ranks for point in table.points if point.calibrates})
    shown = ["", text.rule(f"{table.id}, calibrated on {', '.join(map(str, known))}", width)]
    for note in table.notes:
        shown += text.wrap(f" {note}", width, 1)
    several = len({size.shape.model for size in prediction.predicted}) > 1
    schedules = len({size.shape.schedule for size in prediction.predicted}) > 1
    columns = [column for column in _SIZES if column.header != "model" or several]
    columns = [column for column in columns if column.header != "schedule" or schedules]
    rows = sorted(
        prediction.predicted,
        key=lambda predicted: (predicted.shape.model.name, predicted.shape.ranks),
    )
    shown += text.table(columns, rows, width) if rows else []
    unseen = [size for size in rows if size.regime is Regime.UNSEEN]
    for why in dict.fromkeys(size.caution or NOT_SHOWN for size in unseen):
        sizes = ", ".join(
            str(predicted.shape.ranks)
            for predicted in unseen
            if (predicted.caution or NOT_SHOWN) == why
        )
        shown += text.wrap(f" ? {sizes}: outside the calibrated regime: {why}", width, 3)
    return shown


#: Caution for a prediction whose limiter follows from priors alone.
NOT_SHOWN = "no calibrated size showed what limits it"


_SIZES: list[Column[Predicted]] = [
    Column("model", 9, lambda o: o.shape.model.name[:16], left=True),
    Column("N", 9, lambda o: str(o.shape.ranks)),
    Column("schedule", 9, lambda o: str(o.shape.schedule), left=True),
    Column("micros", 5, lambda o: str(o.shape.micros)),
    Column("measured", 8, lambda o: f"{o.measured:.3f}" if o.measured is not None else "n/a"),
    Column("foreseen", 9, lambda o: f"{o.efficiency:.3f} [{o.low:.3f}, {o.high:.3f}]"),
    Column("off", 8, lambda o: _off(o)),
    Column("", 7, lambda o: _mark(o), left=True),
    Column("limited by", 6, lambda o: _limiter(o), left=True),
]


def _limiter(predicted: Predicted) -> str:
    return f"{predicted.limiter} ?" if predicted.regime is Regime.UNSEEN else str(predicted.limiter)


def _off(predicted: Predicted) -> str:
    return "n/a" if predicted.miss is None else f"{100 * predicted.miss:+.1f}"


def _mark(predicted: Predicted) -> str:
    """Return a mark for a size that is not scored or lies outside its interval."""
    if predicted.implausible:
        return "not counted"
    return "outside" if predicted.covered is False else ""


def _refusals(evaluation: Evaluation, refused: Sequence[Refused], width: int) -> list[str]:
    """Return a sentence for each reason not to predict a size, and for values that are
    not scored.
    """
    shown: list[str] = []
    for prediction in evaluation.predictions:
        for why in dict.fromkeys(refusal.why for refusal in prediction.refused):
            sizes = ", ".join(
                str(refusal.shape.ranks) for refusal in prediction.refused if refusal.why == why
            )
            shown += text.wrap(f" refused   {prediction.table.id}, {sizes}: {why}", width, 11)
        for size in prediction.predicted:
            if size.implausible:
                message = (
                    f" not counted  {prediction.table.id}, {size.shape.model.name}"
                    f" {size.shape.ranks}: it differs by over 10 % from both neighbouring sizes,"
                    " which agree"
                )
                shown += text.wrap(message, width, 14)
    for table in refused:
        shown += text.wrap(f" not read  {table.id}: {table.why}", width, 11)
    return ["", *shown] if shown else []
