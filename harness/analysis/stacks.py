"""The activity of a thread, told by its stack: a part of training, and the line where it is."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Activities by what a frame's file ends with and what its function is called; "" = any. The
#: innermost frame that is one of these counts.
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
    """One frame of a stack, as py-spy names it."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Activity:
    """How often a rank was seen at each activity, and the lines of its own that it was at."""

    seen: Mapping[str, int]
    lines: Mapping[str, int]

    @property
    def count(self) -> int:
        return sum(self.seen.values())


def activity(stack: Sequence[Frame]) -> str:
    """The activity that a stack shows (innermost frame first)."""
    for frame in stack:
        for name, file, function in _FRAMES:
            if frame.file.endswith(file) and function in ("", frame.function):
                return name
    return OTHER


def own_line(stack: Sequence[Frame]) -> str:
    """The innermost line that belongs to no installed package."""
    for frame in stack:
        if "site-packages" not in frame.file and not frame.file.startswith("<"):
            if "/lib/python" not in frame.file:
                return f"{frame.file}:{frame.line}"
    return ""


def tally(stacks: Iterable[Sequence[Frame]]) -> Activity:
    """Many looks at one thread."""
    seen, lines = Counter[str](), Counter[str]()
    for stack in stacks:
        seen[activity(stack)] += 1
        lines[own_line(stack)] += 1
    return Activity(seen=dict(seen.most_common()), lines=dict(lines.most_common(3)))
