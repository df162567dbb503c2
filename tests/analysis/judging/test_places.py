"""A verdict reports that an arm always ran on the same nodes although the site has others."""

from __future__ import annotations

from typing import Any

import pytest

from harness.record import RunRecord, Status
from tests.editing import bound, even, judged, timed

SUBJECT = "efficiency@2/plain"


def placed(nodes: list[int], subject: list[int], baseline: list[int]) -> Any:
    """Return an edit that sets the nodes of the site and the hosts that each arm's launches used in
    turn.
    """

    def edit(doc: Any) -> None:
        even(doc, 0.75)
        bound(doc, at_least=0.6)
        doc["settings"]["nodes"] = nodes
        for arm, hosts in (("@2", subject), ("plain", baseline)):
            for i, x in enumerate(timed(doc, arm)):
                x["hosts"] = [hosts[i % len(hosts)]] if hosts else []

    return edit


@pytest.mark.parametrize(
    ("subject", "baseline", "message"),
    [
        ([0, 1], [1, 0], ""),
        ([], [], "@2 ran only on node 0 of 2"),
        ([1], [0, 1], "@2 ran only on node 1 of 2"),
        ([0, 1], [0], "plain ran only on node 0 of 2"),
    ],
)
def test_an_arm_that_always_ran_on_one_node_is_reported(
    sample_run: RunRecord, subject: list[int], baseline: list[int], message: str
) -> None:
    verdict = judged(sample_run, placed([2, 2], subject, baseline))[SUBJECT]
    assert verdict.status is Status.PASS
    assert message in verdict.detail and ("were not drawn" in verdict.detail) is bool(message)


def test_a_site_of_one_node_is_not_reported(sample_run: RunRecord) -> None:
    verdict = judged(sample_run, placed([2], [], []))[SUBJECT]
    assert verdict.status is Status.PASS and "drawn" not in verdict.detail
