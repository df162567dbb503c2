"""Check what a prediction lacks before it is made.

A question stops a prediction that would rest on facts which the user has not stated. A caution
widens its interval.
"""

from collections.abc import Sequence

from harness.features.foresight import terms
from harness.features.foresight.physics.collectives import Fabric
from harness.features.foresight.shapes import Point, Shape

#: Largest plausible share of a measured step that the modelled exchange of a calibrated size takes.
#: If it takes more, either the stated facts are wrong or the network limits the step.
MOST_BOOKED = 0.5
#: A target counts as far from the calibrated sizes if the batch of a rank is smaller than the
#: smallest calibrated one by at least the factor FAR. In pipelines the number of micro-batches
#: counts instead, with the factor FAR_MICROS.
FAR = 2.0
FAR_MICROS = 4.0


def question(calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Return a question about facts that must be stated first, or an empty string.

    Nothing is asked about an exchange that the strategy itself states.
    """
    for point in calibrated:
        shape = point.shape
        if shape.sent or shape.model.params is None or shape.replicas <= 1 or not point.step_s:
            continue
        share = terms.data_exchange(shape, fabric).total_s / point.step_s
        if share > MOST_BOOKED:
            return (
                f"at the stated link rates an exchange would take {share:.0%} of the measured step"
                f" on {shape.ranks} GPUs: state which optimizer sharding it uses (zero), how many"
                " parameters are trained (trainable_params), and how many GPUs a node has"
                " (hardware.gpus_per_node); if all of these are correct, the network limits the"
                " step, and only a measurement as large as the target shows by how much"
            )
    return ""


def asks(shape: Shape, calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Return a question about facts that are missing for one size, or an empty string.

    If the batch of a rank is smaller than at all calibrated sizes, the exchange takes a larger
    share of the step. That share depends on the number of bytes exchanged, which must therefore be
    known.
    """
    if not _unknown(shape, fabric) or not _shrinks(shape, _of_model(shape, calibrated)):
        return ""
    return (
        "the batch of a rank is at most half of the smallest calibrated one, and the bytes that it"
        " exchanges are unknown: state how many parameters are trained (trainable_params)"
    )


def caution(shape: Shape, calibrated: Sequence[Point], fabric: Fabric) -> str:
    """Return why a prediction of this size is doubtful, or an empty string.

    The reason depends on the shapes alone, not on the predicted terms of the step.
    """
    shapes = _of_model(shape, calibrated)
    if max(s.ranks for s in shapes) <= fabric.per_node < shape.ranks:
        return "no calibrated size uses the network between nodes"
    cuts = {(s.tensor, s.context) for s in shapes}
    if (shape.tensor, shape.context) not in cuts:
        return "no calibrated size has the same tp and cp"
    if shape.stages == 1 and _shrinks(shape, shapes):
        return "the batch of a rank is at most half of the smallest calibrated one"
    if shape.stages > 1 and shape.micros * FAR_MICROS <= min(s.micros for s in shapes):
        return "a replica has at most a quarter of the smallest calibrated number of micro-batches"
    return ""


def lacks_facts(shape: Shape, calibrated: Sequence[Point], fabric: Fabric) -> bool:
    """Return whether a model of the step lacks facts, so that only the number of ranks is used.

    The exchanged bytes are not stated, or nothing states the rates of the links, or only one rank
    was measured, which exchanges nothing.
    """
    of_model = _of_model(shape, calibrated)
    alone = max(s.ranks for s in of_model) == 1 and not _shrinks(shape, of_model)
    whole = shape.tensor == shape.context == shape.stages == 1
    guessed = alone or (fabric.assumed and not _shrinks(shape, of_model))
    return _unknown(shape, fabric) or (guessed and whole and not shape.sent and not fabric.torus)


def _of_model(shape: Shape, calibrated: Sequence[Point]) -> list[Shape]:
    """Return the calibrated sizes of the same model, or all if there are none."""
    alike = [point.shape for point in calibrated if point.shape.model == shape.model]
    return alike or [point.shape for point in calibrated]


def _unknown(shape: Shape, fabric: Fabric) -> bool:
    """Return whether ranks exchange data of unknown size."""
    alone = shape.replicas <= 1 or shape.stages > 1 or fabric.torus
    return not alone and shape.model.params is None and not shape.sent


def _shrinks(shape: Shape, calibrated: Sequence[Shape]) -> bool:
    least = min(s.micros * s.micro_batch for s in calibrated)
    return shape.micros * shape.micro_batch * FAR <= least
