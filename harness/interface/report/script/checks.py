"""List the checks of a script that passed on every launch, and checks that could not be made."""

from collections.abc import Iterator, Sequence

from harness.analysis.script import counting, exchanges, same_training
from harness.analysis.script.replicas import FEW, by_rounding, own_parts
from harness.base.formatting import si
from harness.cases import Mode
from harness.interface.report.script.late import late, late_in_most
from harness.interface.report.script.row import ScriptRow
from harness.record import ScriptObservations


def checks(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """Yield each check, and why it could not be made; None if it passed."""
    yield from _of_all(rows)
    yield from _of_several(rows)


def _of_all(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """Yield the checks of every script."""
    yield "one world", None
    yield "steps of one period", None
    counted = all(_by_content(row) for row in rows)
    yield ("samples by content", None) if counted else ("samples", "as declared")
    if any(row.seen.way == "library" for row in rows):
        yield "scaling", "one launch of one world: there is nothing to compare with"
        return
    yield _start(rows)
    if any(row.seen.backwards > len(row.seen.optimizers) and not row.seen.cleared for row in rows):
        yield "that the loss is divided by the number of accumulated passes", ""


def _start(rows: Sequence[ScriptRow]) -> tuple[str, str | None]:
    """Return the check whether all launches begin with the same parameters."""
    every = [launch for row in rows for launch in row.launches]
    # Shards differ between world sizes, so sharded parameters are compared within each world only.
    sharded = any(row.seen.sharded for row in rows)
    alike = [row.launches for row in rows] if sharded else [every]
    if all(map(same_training.begin_alike, alike)):
        return "one start in all launches", None
    if not all(row.seen.start for row in rows):
        why_not = "watching began within the first step"
    elif same_training.seeded(every):
        in_each = all(same_training.begin_alike(row.launches) for row in rows)
        why_not = (
            "worlds begin with different parameters" if in_each else "each launch draws its seed"
        )
    elif len(every) == len(rows):
        why_not = "each world was launched once"
    else:
        why_not = "no seed was seen"
    return "one start", f"{why_not}: launches are compared by speed"


def _by_content(row: ScriptRow) -> bool:
    """Return whether samples were counted by what reached the model, not by the user's
    declaration.
    """
    watched = row.of_ranks
    came = [float(sum(w.roots.values())) for w in watched]
    alike = any(rows > 1 >= w.distinct * rows for w, rows in zip(watched, came, strict=True))
    return not alike and not counting.uncounted(watched, came)


def _of_several(rows: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """Yield the checks of worlds with several ranks."""
    several = [row for row in rows if row.arm.case.world_size > 1]
    if not several:
        yield "all checks of several ranks", ""
        return
    yield from _replicas([row.seen for row in several], _beside(several))
    if not same_training.works_known([launch for row in rows for launch in row.launches]):
        sizes = "inputs differ in size" if any(row.seen.ragged for row in rows) else ""
        yield "whether a sample takes as much work in every world", sizes
    if layers := list(dict.fromkeys(name for row in several for name in row.seen.statistics)):
        named = ", ".join(layers[:FEW])
        yield f"statistics of {named}", "each rank computes them from its own batch"
    yield from _slow_ranks(several)
    yield from _gradients(several, rows[0])


def _beside(several: Sequence[ScriptRow]) -> str:
    """Return text on the accepted differences of replicas: rounding, and parts that differ by rank.

    The text is empty if there are none.
    """
    rounded = any(by_rounding(row.of_ranks) for row in several)
    of_own = dict.fromkeys(name for row in several for name in own_parts(row.of_ranks))
    parts = ", ".join(list(of_own)[:FEW])
    words = " except for rounding" if rounded else ""
    return f"{words} except for {parts}, which differ by rank" if parts else words


def _slow_ranks(several: Sequence[ScriptRow]) -> Iterator[tuple[str, str | None]]:
    """Yield ranks that the others wait for, perhaps because other processes used the cores."""
    for row in several:
        waited_for = late_in_most(row, quiet=True) or late_in_most(row, bursts=True, quiet=True)
        if waited_for and not late(row):
            longer = si(waited_for.more_s, "s")
            yield (
                f"whether rank {waited_for.rank} of {row.arm.case.world} is slow itself",
                f"it takes {longer} longer in a step; other processes used the cores, too",
            )


def _gradients(several: Sequence[ScriptRow], first: ScriptRow) -> Iterator[tuple[str, str | None]]:
    """Yield comparisons of the first step's gradients at each world size and at the smallest one.

    Gradients that differ are left out, because a verdict reports them.
    """
    lowest = "one rank" if first.arm.case.world_size == 1 else first.arm.case.world
    for row in several:
        pair = row.launches[0], first.launches[0]
        if row is first or same_training.gradients_differ(*pair):
            continue
        reason = _gradient_uncompared(row, first)
        compared = f"equal to {lowest}'s" if reason is None else f"against {lowest}'s"
        yield f"gradient of {row.arm.case.world} {compared}", reason


def _replicas(
    watched: Sequence[ScriptObservations], beside: str = ""
) -> Iterator[tuple[str, str | None]]:
    """Yield whether replicas stay identical, except for ``beside``, and exchange no more than
    needed.
    """
    if any(w.sharded for w in watched):
        yield "replicas", "parameters are sharded"
        if all(w.parallel for w in watched) and not any(list(exchanges.shards(w)) for w in watched):
            yield "shards exchanged as often as needed", None
        return
    yield f"replicas equal at the start and the end{beside}", None
    if any(w.evaluations or w.aside for w in watched):
        yield "models other than the trained one, if any (a teacher, an average of weights)", ""
    if not any(map(exchanges.accumulated, watched)):
        reason = None if all(w.collectives for w in watched) else "none was seen in the last step"
        if any(w.cleared for w in watched):
            reason = "each pass of a step has its own exchange"
        elif any(map(exchanges.may_hide_another, watched)):
            reason = "forward passes all-reduce statistics that are as large"
        yield "gradients exchanged once", reason


def _gradient_uncompared(row: ScriptRow, first: ScriptRow) -> str | None:
    """Return why the first gradient was not compared with the gradient at the smallest world size.

    Return None if it was compared.
    """
    pair = row.launches[0], first.launches[0]
    if not same_training.begin_alike(pair):
        seen = all(launch.ranks[0].watched and launch.ranks[0].watched.start for launch in pair)
        if not seen:
            return "the start of a launch was not seen"
        return (
            "different parameters at the start"
            if same_training.seeded(pair)
            else "no seed was seen"
        )
    if same_training.random(pair):
        return "forward passes draw random numbers"
    if same_training.cut(pair):
        return "ranks hold parts of the model"
    if (ratio := same_training.norms_over(*pair)) != 1.0:
        return f"its norm is {ratio:.4g} times as large: is the loss a mean over tokens?"
    if same_training.same_samples(*pair):
        return None
    return (
        "weak: different samples" if row.arm.case.mode is Mode.WEAK else "the first samples differ"
    )
