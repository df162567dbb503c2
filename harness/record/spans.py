"""How a span is labelled wherever it is seen: in NVTX, in a profiler's trace, in our own log."""

import functools
from enum import StrEnum

DOMAIN = "scaleproof"
#: Where a trace's header has, for threads of smaller groups than the world, the group's ranks.
GROUPS = "glooGroups"


class Category(StrEnum):
    """The category of a span's time in the budget; step, optimizer, checkpoint and gate only give
    structure.
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
    """``scaleproof.data.batch``: the name of a span's range in a trace."""
    return f"{DOMAIN}.{category}.{name}"


def peer_label(kind: str, peer: int) -> str:
    """``scaleproof.peer.send.3``: what tells whom the next send or recv of a trace is with."""
    return f"{DOMAIN}.peer.{kind}.{peer}"


@functools.cache  # of every span of a trace
def category_of(label: str) -> Category | None:
    """The category of a range in a trace; None if it is none of ours."""
    domain, _, rest = label.partition(".")
    known = rest.partition(".")[0]
    return Category(known) if domain == DOMAIN and known in set(Category) else None
