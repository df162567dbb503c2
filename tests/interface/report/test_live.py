"""The live line: rewritten in place on a terminal, plain lines in a pipe, below another program's
text.
"""

from __future__ import annotations

import io

import pytest

from harness.interface.report.live import Live, line
from harness.measure.progress import Looking, Moment, Waiting
from harness.record import Purpose


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def moment(
    step: int = 3, purpose: Purpose = Purpose.TIMED, plan: str = "ddp/mlp-nano/weak"
) -> Moment:
    return Moment(
        plan=plan, number=3, num_plans=11, arm=f"{plan}@2cpu", purpose=purpose, launch=9, num_launches=32, step=step,
        num_steps=28, elapsed_s=42.0, left_s=70.0, last="262 samples/s",
    )  # fmt: skip


def test_the_line_contains_case_launch_step_throughput_and_eta() -> None:
    text = line(moment(), 100)
    assert (
        text == "  [3/11   9/32] ddp/mlp-nano/weak@2cpu  step 3/28  262 samples/s  0:42  ETA 1:10"
    )
    assert len(text) < 100


def test_a_queued_run_prints_a_line_for_each_change_into_a_pipe() -> None:
    out = io.StringIO()
    live = Live(out)
    for here, says in [(0, "job 7 pending: Priority"), (0, "job 7 pending: Priority"), (1, "")]:
        live.show(Waiting(here=here, wanted=2, says=says, waited_s=61.0))
    first, second = out.getvalue().splitlines()
    assert first == "  [start] agents ready: 0 of 2  job 7 pending: Priority  1:01"
    assert second == "  [start] agents ready: 1 of 2  1:01"


def test_the_line_is_rewritten_in_place_on_a_terminal() -> None:
    out = Terminal()
    live = Live(out)
    live.show(moment(3))
    live.show(moment(4))
    live.clear()
    live.clear()
    assert out.getvalue().count("\n") == 0
    assert out.getvalue().endswith("\r\033[K")


def test_the_cursor_returns_to_the_line_of_a_test_runner() -> None:
    out = Terminal()
    live = Live(out, column=lambda: 18)
    live.show(moment(3))
    live.show(moment(4))
    live.clear()
    assert out.getvalue().startswith("\n  [3/11   9/32]")
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("\033[A\033[18C")


def test_a_pipe_gets_one_line_per_plan_and_purpose() -> None:
    out = io.StringIO()
    live = Live(out)
    for step in range(5):
        live.show(moment(step, Purpose.GATE))
    for step in range(5):
        live.show(moment(step))
    live.show(moment(plan="fsdp/mlp-nano/weak"))
    assert len(out.getvalue().splitlines()) == 3
    assert "\r" not in out.getvalue() and "\033" not in out.getvalue()


def test_notes_are_kept_and_break_the_line_once() -> None:
    column = 18
    out = io.StringIO()
    live = Live(out, column=lambda: column)
    live.note("first")
    live.note("second")
    column = 19
    live.note("third")
    assert out.getvalue() == "\n  ! first\n  ! second\n\n  ! third\n"


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_quiet_shows_notes_only(stream: io.StringIO) -> None:
    live = Live(stream, quiet=True)
    live.show(moment())
    live.note("kept")
    assert stream.getvalue() == "  ! kept\n"


def test_described_cases_are_counted_with_their_time() -> None:
    """Describing 41 large cases takes a minute, so a terminal gets updates and a pipe one line."""
    out = io.StringIO()
    live = Live(out)
    for done, left_s in ((0, None), (6, 51.0)):
        live.show(Looking(case="ddp/x@8gpu", done=done, num_cases=41, elapsed_s=9.0, left_s=left_s))
    (told,) = out.getvalue().splitlines()
    assert told == "  [look 1/41] ddp/x@8gpu  what it computes, sends and holds  0:09  ETA ?"
