"""Cautions before any figure is made: questions that a prediction cannot answer, or only with
doubt.

A question stops it: an answer would rest on what was not stated. A caution widens it.
"""

from collections.abc import Sequence

from harness.features.foresight import terms
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.shapes import Point, Shape

#: A booked exchange that takes this share of a calibrated step was booked wrongly, or limits all.
MOST_BOOKED = 0.5
#: A rank's batch, or the number of micro-batches, is far from a calibrated one beyond this factor.
FAR = 2.0
FAR_MICROS = 4.0


def question(calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Asks for what has to be stated before anything can be said; empty where nothing has to.

    What a strategy itself states is no guess, so it is never asked about.
    """
    for point in calibrated:
        shape = point.shape
        if shape.sent or shape.model.params is None or shape.replicas <= 1 or not point.step_s:
            continue
        share = terms.data_exchange(shape, fabric).total_s / point.step_s
        if share > MOST_BOOKED:
            return (
                f"at the rates of its links an exchange would take {share:.0%} of the measured step"
                f" of {shape.ranks} GPUs: state which optimizer it has (zero), how many parameters"
                " train (trainable_params), how many GPUs a node has (hardware.gpus_per_node); if"
                " all of that is right, the network limits, and only a size as large as the target"
                " tells how"
            )
    return ""


def asks(shape: Shape, calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Asks for what has to be stated of one size: how an exchange that nobody knows grows as a
    batch shrinks depends on what is exchanged.
    """
    if not _unknown(shape, fabric) or not _shrinks(shape, _of_model(shape, calibrated)):
        return ""
    return (
        "a rank's batch is half of any calibrated one, or less, and what it exchanges is not known:"
        " state how many parameters train (trainable_params)"
    )


def caution(shape: Shape, calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Why a prediction is doubtful whatever its terms say; empty where nothing speaks for that."""
    shapes = _of_model(shape, calibrated)
    if _unknown(shape, fabric):
        return "what it exchanges is not known: params, or trainable_params, are not stated"
    cuts = {(s.tensor, s.context) for s in shapes}
    if (shape.tensor, shape.context) not in cuts:
        return "no calibrated size is cut by its tp and cp"
    if shape.stages == 1 and _shrinks(shape, shapes):
        return "a rank's batch is half of any calibrated one, or less"
    if shape.stages > 1 and shape.micros * FAR_MICROS <= min(s.micros for s in shapes):
        return "it has a quarter of any calibrated size's micro-batches, or fewer"
    return ""


def _of_model(shape: Shape, calibrated: Sequence[Point]) -> list[Shape]:
    """The calibrated sizes of its model; all where it has none."""
    alike = [point.shape for point in calibrated if point.shape.model == shape.model]
    return alike or [point.shape for point in calibrated]


def _unknown(shape: Shape, fabric: Fabric) -> bool:
    """Whether ranks exchange something that nobody states."""
    alone = shape.replicas <= 1 or shape.stages > 1 or fabric.torus
    return not alone and shape.model.params is None and not shape.sent


def _shrinks(shape: Shape, calibrated: Sequence[Shape]) -> bool:
    least = min(s.micros * s.micro_batch for s in calibrated)
    return shape.micros * shape.micro_batch * FAR <= least
