"""Compare what the ranks of a user's script exchange in a step with what its gradients need."""

from collections.abc import Iterator

from harness.record import CollectiveCount, ScriptObservations

#: Range of the all-reduced bytes divided by the bytes of the parameters, if gradients are exchanged
#: once.
ONCE = (0.45, 1.25)
#: Collectives with fewer bytes do not carry gradients. They carry a loss, a flag or a norm.
SMALL = 1024
#: The count of a collective that was not issued.
NONE = CollectiveCount(count=0, payload_bytes=0)


def extra_exchange(watched: ScriptObservations) -> str:
    """Return an error message if gradients are exchanged more often than weights are updated.

    Return an empty string otherwise. A step with several updates, for example of a GAN, needs one
    exchange for each update.
    """
    times = _exchanges(watched)
    if times <= ONCE[1] * _updates(watched) or _in_each_pass(watched) or watched.cleared:
        return ""
    return (
        f"{times:.2f} times the parameters are all-reduced in {_step_of(watched)}:"
        " is there a second all-reduce in addition to DistributedDataParallel's?"
    )


def accumulated(watched: ScriptObservations) -> str:
    """Return a remark if gradients are exchanged in each of several accumulated backward passes.

    The result is correct, but the exchanges cost time. Return an empty string otherwise.
    """
    if not _in_each_pass(watched):
        return ""
    passes = watched.backwards
    second = ", or is there a second all-reduce" if passes == 2 * _updates(watched) else ""
    return (
        f"{_exchanges(watched):.2f} times the parameters are all-reduced in {_step_of(watched)}, in"
        f" each of {passes} backward passes: is no_sync() missing while gradients"
        f" accumulate{second}?"
    )


def lost(watched: ScriptObservations) -> str:
    """Return a remark if gradients of some of the samples are discarded, else an empty string.

    Methods that repeat passes over the same samples are not reported. Examples are SAM, and methods
    that inspect the gradients of several tasks.
    """
    passes = watched.backwards
    if not watched.cleared or passes <= _updates(watched) or watched.distinct * passes < 1.01:
        return ""
    return (
        f"gradients are cleared between the {passes} backward passes of {_step_of(watched)}, each"
        " over different samples: is zero_grad() in the wrong place?"
    )


def may_hide_another(watched: ScriptObservations) -> bool:
    """Return whether a second exchange of gradients may go unnoticed.

    If forward passes all-reduce, the additional all-reduced bytes of a step have two possible
    causes. The backward pass may repeat the all-reduces of the forward pass, or gradients may be
    exchanged twice.
    """
    return _exchanges(watched, of_statistics=1) > ONCE[1] * _updates(watched)


def _exchanges(watched: ScriptObservations, of_statistics: int = 2) -> float:
    """Return a lower limit of how often a step all-reduces the gradients; 0 if it does not.

    All-reduces in a forward pass carry statistics (Barlow Twins, batch norm), and the backward pass
    may all-reduce the same number of bytes again. ``of_statistics`` times the bytes of the forward
    pass are therefore subtracted.
    """
    reduced = watched.collectives.get("all_reduce")
    whole = watched.trained_bytes or watched.parameter_bytes
    if reduced is None or reduced.payload_bytes < SMALL or not whole:
        return 0.0
    return max(0, reduced.payload_bytes - of_statistics * watched.reduced) / whole


def _updates(watched: ScriptObservations) -> int:
    return max(1, len(watched.optimizers))


def _in_each_pass(watched: ScriptObservations) -> bool:
    passes = watched.backwards
    if watched.cleared:
        return False
    times = _exchanges(watched)
    once_a_pass = abs(times - passes) < 0.25 * passes
    return times > ONCE[1] * _updates(watched) and passes > _updates(watched) and once_a_pass


def _step_of(watched: ScriptObservations) -> str:
    updates = _updates(watched)
    return "a step" if updates == 1 else f"a step of {updates} updates"


def shards(watched: ScriptObservations) -> Iterator[str]:
    """Yield remarks on unnecessary exchanges of sharded parameters.

    Such exchanges cost time but are correct. Gradients have to be reduced and scattered once in a
    step, and shards have to be gathered twice for each backward pass.
    """
    passes = watched.backwards
    of_all = watched.parameter_bytes
    trained = watched.trained_bytes or of_all
    several = "set_requires_gradient_sync(False) while gradients accumulate?"
    twice = "is a block wrapped or called twice?"
    for name, whole, parts, wanted, reason in (
        ("reduce_scatter", trained, 1, 1, several),
        ("all_gather", of_all, watched.world_size, 2 * passes, twice),
    ):
        issued = watched.collectives.get(name)
        times = issued.payload_bytes * parts / whole if issued is not None and whole else 0.0
        if times > ONCE[1] * wanted:
            yield (
                f"{name} moves the parameters {times:.3g} times in a step of {passes} backward"
                f" passes, but {wanted} times are sufficient: {reason}"
            )


def large(watched: ScriptObservations) -> set[str]:
    """Return the collectives of a step that carry more than single values."""
    kinds = watched.collectives.items()
    return {name for name, issued in kinds if issued.payload_bytes >= SMALL}
