"""Labels of spans (named time ranges) in NVTX, in profiler traces and in the program's log."""

import functools
from enum import StrEnum

#: The NVTX domain, and the first part of every label.
DOMAIN = "scaleproof"
#: The key in the header of a trace under which the ranks of each process group are listed, except
#: the group of all ranks.
GROUPS = "glooGroups"


class Category(StrEnum):
    """The category of a span in the time budget.

    The categories step, optimizer, checkpoint and gate only structure the trace; their time is in
    no term of its own.
    """

    STEP = "step"
    COMPUTE = "compute"
    COMMUNICATION = "communication"
    DATA = "data"
    WAIT = "wait"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    GATE = "gate"


def label(name: str, category: Category) -> str:
    """Return the name of a span's range in a trace, such as ``scaleproof.data.batch``."""
    return f"{DOMAIN}.{category}.{name}"


def peer_label(kind: str, peer: int) -> str:
    """Return the label that names the peer of the next send or recv in a trace:
    ``scaleproof.peer.send.3``.
    """
    return f"{DOMAIN}.peer.{kind}.{peer}"


@functools.cache  # called for every span of a trace
def category_of(label: str) -> Category | None:
    """Return the category of a range in a trace; None if this program did not make the range."""
    domain, _, rest = label.partition(".")
    known = rest.partition(".")[0]
    return Category(known) if domain == DOMAIN and known in set(Category) else None
