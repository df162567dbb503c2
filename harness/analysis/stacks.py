"""Derive a thread's activity from its stack: the part of training, and the line of user code."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Triples of an activity, the end of a frame's file name, and the frame's function ("" matches any
#: function). The innermost matching frame determines the activity.
_FRAMES: Sequence[tuple[str, str, str]] = (
    ("communication", "torch/distributed/distributed_c10d.py", ""),
    ("communication", "torch/distributed/_functional_collectives.py", ""),
    ("data", "torch/utils/data/dataloader.py", ""),
    ("checkpoint", "torch/serialization.py", ""),
    ("checkpoint", "torch/distributed/checkpoint/state_dict_saver.py", ""),
    ("optimizer", "torch/optim/optimizer.py", ""),
    ("backward", "torch/autograd/__init__.py", "backward"),
    ("forward", "torch/nn/modules/module.py", ""),
)
OTHER = "other"


@dataclass(frozen=True)
class Frame:
    """One frame of a stack, as py-spy reports it."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The observations of a rank: the number in each activity, and at each line of user code."""

    seen: Mapping[str, int]
    lines: Mapping[str, int]

    @property
    def count(self) -> int:
        return sum(self.seen.values())


def activity(stack: Sequence[Frame]) -> str:
    """Return the activity of a stack, whose innermost frame comes first."""
    for frame in stack:
        for name, file, function in _FRAMES:
            if frame.file.endswith(file) and function in ("", frame.function):
                return name
    return OTHER


def own_line(stack: Sequence[Frame]) -> str:
    """Return the innermost line that is not in an installed package, or an empty string."""
    for frame in stack:
        if "site-packages" not in frame.file and not frame.file.startswith("<"):
            if "/lib/python" not in frame.file:
                return f"{frame.file}:{frame.line}"
    return ""


def tally(stacks: Iterable[Sequence[Frame]]) -> Activity:
    """Count the activities and lines in several stacks of one thread."""
    seen = Counter[str]()
    lines = Counter[str]()
    for stack in stacks:
        seen[activity(stack)] += 1
        lines[own_line(stack)] += 1
    return Activity(seen=dict(seen.most_common()), lines=dict(lines.most_common(3)))
