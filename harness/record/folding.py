"""A record and its chain as one: what was measured after the record was last written is there.

While a run is made only the chain grows, one line for each launch as it ends. So whatever happens
to the program, nothing that was measured is lost, and a run may not be repeated until it passes.
"""

import datetime
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from harness.base.documents import Json, from_doc
from harness.base.errors import RecordError
from harness.cases import Plan, Settings, Threshold, Window
from harness.host.admission import Finding
from harness.host.machine import Machine
from harness.record import chain
from harness.record.chain import Kind, Link
from harness.record.described import Described
from harness.record.fabric import Row, Suspects
from harness.record.launch import LaunchRecord
from harness.record.record import SCHEMA, Block, RunRecord
from harness.record.recovery import Played, Trial

Entry = TypeVar("Entry")


def begun(links: Sequence[Link], where: str) -> RunRecord:
    """A run of which nothing but its chain is there; RecordError if that has no beginning."""
    if not links or links[0].kind is not Kind.SEALED or links[0].body.get("schema") != SCHEMA:
        raise RecordError(
            "the chain does not begin a run of this version",
            where=where,
            expected=f"a line {Kind.SEALED}, schema {SCHEMA}",
            fix="scaleproof run CASE",
        )
    sealed = links[0].body
    return RunRecord(
        schema=SCHEMA,
        run=sealed["run"],
        started_at=sealed["started_at"],
        complete=False,
        machine=from_doc(Machine, sealed["machine"]),
        software=sealed["software"],
        settings=from_doc(Settings, sealed["settings"]),
        environment=sealed["environment"],
        plans=(),
        described={},
        thresholds=tuple(from_doc(Threshold, t) for t in sealed["thresholds"]),
        admission=tuple(from_doc(Finding, f) for f in sealed["admission"]),
        facts=sealed["facts"],
    )


def folded(record: RunRecord, links: Sequence[Link]) -> RunRecord:
    """The record of an interrupted run with all that its chain has.

    Verdicts that are older than a launch are gone: ``analysis.reading`` judges anew.
    """
    if record.complete or not links or record.head == links[-1].hash:
        return record
    windows, described = dict(record.windows), dict(record.described)
    for body in chain.bodies(links, Kind.WINDOWS):
        windows |= from_doc(dict[str, dict[str, Window]], body)
    for body in chain.bodies(links, Kind.DESCRIBED):
        described |= from_doc(dict[str, Described], body)
    plans = {plan.hash: plan for plan in record.plans}
    for body in chain.bodies(links, Kind.PLAN):
        plans.setdefault(body["hash"], from_doc(Plan, body["plan"]))
    pairs = _all(Suspects, links, Kind.PAIRED)
    grown = replace(
        record,
        plans=tuple(plans.values()),
        described=described,
        windows=windows,
        launches=_all(LaunchRecord, links, Kind.LAUNCH),
        blocks=_all(Block, links, Kind.BLOCK),
        recoveries=_all(Trial, links, Kind.TRIAL),
        played=_all(Played, links, Kind.PLAYED),
        fabric=tuple(from_doc(Row, r) for b in chain.bodies(links, Kind.SWEEP) for r in b),
        suspects=pairs[-1] if pairs else record.suspects,
        verdicts=(),
        elapsed_s=max(record.elapsed_s, _seconds(links)),
        head=links[-1].hash,
    )
    states = chain.bodies(links, Kind.STATE)
    return _stated(grown, states[-1]) if states else grown


def _all(kind: type[Entry], links: Sequence[Link], of: Kind) -> tuple[Entry, ...]:
    return tuple(from_doc(kind, body) for body in chain.bodies(links, of))


def _stated(record: RunRecord, body: Json) -> RunRecord:
    """The record with what the last state in the chain says besides."""
    elapsed_s = max(record.elapsed_s, float(body["elapsed_s"]))
    return replace(
        record,
        notes=tuple(dict.fromkeys((*record.notes, *body["notes"]))),
        out_of_time=tuple(body["out_of_time"]),
        launch_sd=body["launch_sd"],
        nodes=tuple(from_doc(Machine, n) for n in body["nodes"]),
        setups=body["setups"],
        elapsed_s=elapsed_s,
        device_s=elapsed_s * sum(record.settings.nodes),
    )


def _seconds(links: Sequence[Link]) -> float:
    """Seconds from the beginning of the last sitting to the last line."""
    sittings = [0, *(i for i, link in enumerate(links) if link.kind is Kind.SITTING)]
    first, last = (datetime.datetime.fromisoformat(links[i].at) for i in (sittings[-1], -1))
    return (last - first).total_seconds()
