"""The activity of a thread, from shortened stacks that py-spy took of real training runs."""

from __future__ import annotations

import pytest

from harness.analysis.stacks import Frame, activity, own_line, tally

LIB = "/venv/lib/python3.11/site-packages/torch"
TRAIN = Frame("train", "/home/u/train.py", 40)
MAIN = Frame("<module>", "/home/u/train.py", 90)


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("distributed/distributed_c10d.py", "all_reduce", "communication"),
        ("utils/data/dataloader.py", "__next__", "data"),
        ("serialization.py", "save", "checkpoint"),
        ("optim/optimizer.py", "wrapper", "optimizer"),
        ("autograd/__init__.py", "backward", "backward"),
        ("autograd/__init__.py", "grad", "other"),
        ("nn/modules/module.py", "_call_impl", "forward"),
    ],
)
def test_the_innermost_recognized_frame_determines_the_activity(
    file: str, function: str, name: str
) -> None:
    inner = Frame("helper", f"{LIB}/_tensor.py", 1)
    assert activity([inner, Frame(function, f"{LIB}/{file}", 7), TRAIN, MAIN]) == name


def test_a_collective_inside_backward_is_communication() -> None:
    stack = [
        Frame("all_reduce", f"{LIB}/distributed/distributed_c10d.py", 1),
        Frame("backward", f"{LIB}/autograd/__init__.py", 2),
        TRAIN,
    ]
    assert activity(stack) == "communication"


def test_the_reported_line_is_in_the_users_code() -> None:
    stack = [
        Frame("step", f"{LIB}/optim/optimizer.py", 1),
        Frame("run", "/usr/lib/python3.11/runpy.py", 2),
        Frame("<listcomp>", "<string>", 3),
        TRAIN,
        MAIN,
    ]
    assert own_line(stack) == "/home/u/train.py:40"
    assert own_line(stack[:3]) == ""


def test_sampled_stacks_are_counted_by_activity_and_line() -> None:
    loading = [Frame("__next__", f"{LIB}/utils/data/dataloader.py", 1), TRAIN]
    looks = tally([loading, loading, [MAIN], []])
    assert looks.seen == {"data": 2, "other": 2} and looks.count == 4
    assert looks.lines == {"/home/u/train.py:40": 2, "/home/u/train.py:90": 1, "": 1}
