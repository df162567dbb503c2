"""Root cause: which rank ended a launch, told apart from the ranks that only noticed."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from harness.protocol import RankEnd
from harness.record import Cause


def attribute(ends: Sequence[RankEnd]) -> Cause | None:
    """The cause of a failed launch; None if every rank finished.

    In this order: a rank's own exception; a signal that we did not send; an exit without a
    result; in a hang the rank that is stopped, or that does not wait inside torch as its victims
    do, or was silent longest. A rank that reports a lost
    connection or a time-out is a victim; the one that said nothing is the suspect.
    """
    failed = [e for e in ends if not (e.finished and e.exit_code == 0)]
    if not failed:
        return None
    by_order = sorted(failed, key=lambda e: e.order)
    own = [e for e in by_order if e.error is not None and not e.error.peer]
    signalled = [e for e in by_order if e.signal is not None and not e.killed]
    left = [e for e in by_order if not e.killed and e.signal is None and e.error is None]
    silent = sorted(
        (e for e in failed if e.killed),
        key=lambda e: (e.state not in ("T", "D"), waits_in_torch(e.stack), e.step, -e.silent_s),
    )
    if own:
        found, kind, sure = own[0], "exception", True
        assert found.error is not None
        message = f"{found.error.type}: {found.error.message.splitlines()[0]}"
    elif signalled:
        found, kind, sure = signalled[0], "signal", True
        assert found.signal is not None
        message = (
            f"signal {found.signal} ({signal.Signals(found.signal).name}), no Python error written"
        )
    elif left:
        found, kind, sure = left[0], "exit", True
        message = f"left with status {found.exit_code} and no result"
    elif silent:
        found, kind = silent[0], "hang"
        stopped = found.state in ("T", "D")
        sure = stopped or len(silent) == 1
        what = "stopped" if found.state == "T" else "silent"
        message = f"{what} for {found.silent_s:.0f} s"
        if frame := innermost(found.stack):
            message += f" in {frame[0]}, line {frame[1]}"
    else:
        found, kind, sure = by_order[0], "peer", False
        assert found.error is not None
        message = f"{found.error.type}: {found.error.message.splitlines()[0]}"
    return Cause(
        rank=found.rank,
        kind=kind,
        message=message,
        phase=found.phase,
        step=found.step,
        sure=sure,
        victims=tuple(e.rank for e in failed if e.rank != found.rank),
    )


def innermost(stack: str) -> tuple[str, int] | None:
    """File and line that a rank's main thread was at, from faulthandler's text."""
    _, _, main = stack.rpartition("(most recent call first):")
    match = re.search(r'File "([^"]+)", line (\d+)', main)
    return (match[1], int(match[2])) if match else None


def waits_in_torch(stack: str) -> bool:
    """Whether a rank was inside torch, where those wait who wait for somebody else."""
    frame = innermost(stack)
    return frame is not None and "/torch/" in frame[0]
