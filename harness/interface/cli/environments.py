"""Shared code of commands that measure a case in several environments in the same blocks."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.base.errors import SpecError
from harness.cases import CaseSpec, Mode, Plan
from harness.cases.plan import Protocol, Role
from harness.cases.recipes import REAL
from harness.cases.script import script_case
from harness.cases.targets import plans_of
from harness.interface import options
from harness.interface.cli import measuring
from harness.interface.cli.answer import Asked
from harness.interface.report.heartbeat import watched
from harness.interface.report.live import Live
from harness.measure.interleaving import Interleaver
from harness.measure.session import Session


def interleavers(
    asked: Asked, targets: Sequence[str], setups: tuple[tuple[str, str], ...], **more: Any
) -> tuple[Session, list[tuple[CaseSpec, Interleaver]]]:
    """Return a session with these setups, and the largest case of each target with its interleaver.

    The user's script, if there is one, runs on all ranks. ``more`` are further settings. The
    session has no thresholds, profiles nothing and does not sweep the fabric.
    """
    catalogue, site = measuring.site(asked)
    cases = []
    for target in targets:
        plans = plans_of(target, site, catalogue, measuring.settings(asked))
        cases.append(_largest(target, plans))
    if asked.script:
        cases.append((script_case(asked.script, site, Mode.WEAK), REAL))
    given = measuring.values(asked)
    settings = options.settings(given, site, ("scaleproof", *asked.words))
    settings = replace(settings, timeline=False, fabric=False, setups=setups, **more)
    live = watched(Live(sys.stderr), given["heartbeat"] or "")
    session = Session(catalogue, settings, measuring.results(asked), (), live)
    return session, [(case, Interleaver(session, case, protocol)) for case, protocol in cases]


def _largest(target: str, plans: Sequence[Plan]) -> tuple[CaseSpec, Protocol]:
    arms_of_plans = ((arm, plan.protocol) for plan in plans for arm in plan.arms)
    subjects = [(arm.case, protocol) for arm, protocol in arms_of_plans if arm.role is Role.SUBJECT]
    if not subjects:
        raise SpecError(
            f"{target} has no case to measure",
            expected="a case: ddp/decoder-tiny/weak",
            fix="scaleproof run list",
        )
    return max(subjects, key=lambda pair: pair[0].world_size)
