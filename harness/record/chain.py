"""The chain of a run: an append-only, hash-linked log, and the functions that merge it into the
record.
"""

import datetime
import hashlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from harness.base import files
from harness.base.documents import Json, fields_of, from_doc, parsed, to_doc
from harness.base.errors import RecordError
from harness.base.files import Lock
from harness.cases import Plan, Settings, Threshold, Window
from harness.host.admission import Finding
from harness.host.machine import Machine
from harness.record.described import Described
from harness.record.fabric import Row, Suspects
from harness.record.launch import LaunchRecord
from harness.record.record import SCHEMA, Block, RunRecord
from harness.record.recovery import FaultedTraining, Trial

FILE = files.CHAIN
#: Fields of a record that the STATE links of the chain and the end of the run set.
STATED = (
    "notes", "out_of_time", "launch_sd", "nodes", "setups", "elapsed_s", "device_s", "offered",
    "admission",
)  # fmt: skip


class Kind(StrEnum):
    """The kind of a link. The comment next to each kind says what the body contains."""

    SEALED = "sealed"  # everything that was fixed before the first launch
    PLAN = "plan"  # a plan and its hash
    DESCRIBED = "described"  # the descriptions of cases (Described), by the hash of the case
    WINDOWS = "windows"  # the windows of arms, by the hash of the plan
    BLOCK = "block"  # the arms of a block in their order
    LAUNCH = "launch"  # a LaunchRecord
    SWEEP = "sweep"  # the rows of a fabric sweep
    BROKEN = "broken"  # the name of the launch of a failed fabric sweep, and the reason
    TRIAL = "trial"  # an injected fault and the recovery from it
    PAIRED = "paired"  # measurements of pairs of nodes
    PLAYED = "played"  # a training that was interrupted by faults
    STATE = "state"  # other results so far: notes, nodes, seconds
    SITTING = "sitting"  # a resume of the run: the machine, and the launches that were cut off
    ENDED = "ended"  # the end of the run


@dataclass(frozen=True, kw_only=True)
class Link:
    """One line of the chain.

    ``number`` counts from 0, and ``at`` is the time in ISO format. ``before`` is the hash of the
    previous line. ``body`` is a JSON value.
    """

    number: int
    kind: Kind
    at: str
    before: str
    body: Json

    @cached_property
    def line(self) -> str:
        """The line as it is written to the file."""
        return json.dumps(fields_of(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def hash(self) -> str:
        """The sha256 of the line."""
        return hashlib.sha256(self.line.encode()).hexdigest()


class Chain:
    """A writer that appends links to a new or existing chain.

    Raises RecordError if another process writes to the chain, because its links would not follow
    from each other.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._lock = Lock(folder)
        # remove incomplete files of a process that was killed while it wrote them
        for torn in folder.glob(".record.json.*"):
            torn.unlink(missing_ok=True)
        self.links = list(read(folder))
        self._failed: files.UnwrittenError | None = None
        self._cut_torn_line()

    @property
    def head(self) -> str:
        """The hash of the last link; empty if there is none."""
        return self.links[-1].hash if self.links else ""

    def reopen(self) -> None:
        """Remove the end of a chain whose record could not be written, so that the run can go on.

        The process was killed, or the disk was full, after the end had been entered.
        """
        if self.links and self.links[-1].kind is Kind.ENDED:
            self.links.pop()
            self._cut_torn_line()

    def add(self, kind: Kind, *bodies: object) -> None:
        """Append one link for each body. All links are on disk when this returns.

        Raises UnwrittenError if they cannot be written. The chain then contains none of these
        links, and this process appends no further links, because the chain would have a gap. A
        resumed run can continue the chain.
        """
        self.refuse_failed()
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        new: list[Link] = []
        for body in bodies:
            before = new[-1].hash if new else self.head
            number = len(self.links) + len(new)
            new.append(Link(number=number, kind=kind, at=at, before=before, body=to_doc(body)))
        try:
            self._append("".join(link.line + "\n" for link in new).encode())
        except OSError as error:
            self._failed = files.unwritten(self._path.parent, error)
            # If this fails, readers ignore an incomplete last line and accept a complete one.
            with suppress(OSError):
                self._cut_torn_line()
            raise self._failed from None
        self.links += new

    def refuse_failed(self) -> None:
        """Raise UnwrittenError if an earlier link could not be written."""
        if self._failed is not None:
            raise self._failed

    def release(self) -> None:
        """Release the lock so that other processes can write to the chain."""
        self._lock.release()

    def _append(self, lines: bytes) -> None:
        """Append lines to the file and wait until they are on disk."""
        # The file is unbuffered because a buffer would be written again when the file is closed.
        with self._path.open("ab", buffering=0) as file:
            unwritten = memoryview(lines)
            while unwritten:
                unwritten = unwritten[file.write(unwritten) :]
            os.fsync(file.fileno())

    def _cut_torn_line(self) -> None:
        """Remove an incomplete last line, which a killed process may have left."""
        if self._path.is_file():
            whole = sum(len(link.line.encode()) + 1 for link in self.links)
            if self._path.stat().st_size > whole:
                os.truncate(self._path, whole)


def read(folder: Path) -> tuple[Link, ...]:
    """Return the links of a run, or () if it has no chain.

    Raises RecordError if a link does not follow from the one before. An incomplete last line is
    ignored, because a killed process may have left it.
    """
    return tuple(walk(folder))


def walk(folder: Path) -> Iterator[Link]:
    """Yield the links of a run one by one, without holding all of them in memory.

    Raises RecordError if a link does not follow from the one before.
    """
    path = folder / FILE
    before = ""
    for number, line in enumerate(_lines(path)):
        where = f"{path}, line {number + 1}"
        try:
            link = _parsed(line)
        except ValueError as error:
            raise RecordError(f"this line is not a link: {error}", where=where, fix=_FIX) from None
        if (link.number, link.before) != (number, before):
            raise RecordError(
                "the chain is broken: this line does not follow from the one before",
                where=where,
                expected=f"link {number}, which follows hash {before[:12] or '(none)'}",
                fix=_FIX,
            )
        before = link.hash
        yield _checked(link, where)


def _lines(path: Path) -> Iterator[str]:
    """Yield the complete lines of a file without line ends; nothing if the file does not exist."""
    try:
        with io.TextIOWrapper(files.opened(path), encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield line[:-1]
    except FileNotFoundError:
        return
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), fix=_FIX) from None


def _parsed(line: str) -> Link:
    """Return the link in a line. Raise ValueError if the line is not a link.

    The body can be any JSON value and is not copied. The link keeps the line as it was read, so
    that its hash covers every byte.
    """
    doc = parsed(line)
    if not isinstance(doc, dict) or "body" not in doc:
        return from_doc(Link, doc, "link")
    link = replace(from_doc(Link, {**doc, "body": None}, "link"), body=doc["body"])
    vars(link)["line"] = line
    return link


def _checked(link: Link, where: str) -> Link:
    """Return the link if its body has the keys that its readers need. Raise RecordError
    otherwise.
    """
    body = link.body
    keys = _KEYS.get(link.kind, ())
    known = isinstance(body, list if link.kind is Kind.SWEEP else dict)
    missing = [key for key in keys if not known or key not in body]
    if link.kind is Kind.PLAN and not missing and not isinstance(body["plan"], dict):
        missing = ["plan"]
    if not known or missing:
        what = f"a link {link.kind} without {', '.join(missing) or 'its body'}"
        raise RecordError(what, where=where, expected=", ".join(keys) or "a body", fix=_FIX)
    return link


#: The keys that readers need in the body of a link, by kind.
_KEYS: dict[Kind, tuple[str, ...]] = {
    Kind.SEALED: (
        "run", "schema", "started_at", "settings", "machine", "software", "admission",
        "environment", "thresholds",
    ),
    Kind.PLAN: ("hash", "plan"),
    Kind.BROKEN: ("launch", "why"),
    Kind.STATE: ("notes", "out_of_time", "launch_sd", "nodes", "setups", "elapsed_s"),
}  # fmt: skip
#: The fix for every damaged chain.
_FIX = "copy the run's folder from its source again; an edited chain cannot be repaired"


def bodies(links: Sequence[Link], kind: Kind) -> list[Json]:
    """Return the bodies of the links of one kind, in order."""
    return [link.body for link in links if link.kind is kind]


Entry = TypeVar("Entry")


def begun(links: Sequence[Link], where: str) -> RunRecord:
    """Return the record of a run that has only a chain, as it was before the first launch.

    Raises RecordError if the chain does not begin with a SEALED link of the present schema.
    """
    if not links or links[0].kind is not Kind.SEALED or links[0].body.get("schema") != SCHEMA:
        raise RecordError(
            "the chain does not begin with a run of this version",
            where=where,
            expected=f"a link {Kind.SEALED} with schema {SCHEMA}",
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
    """Return the record of an interrupted run, extended by everything in its chain.

    Its verdicts are dropped, because later launches may change them. ``analysis.reading`` judges
    the run again.
    """
    if record.complete or not links or record.head == links[-1].hash:
        return record
    windows = dict(record.windows)
    described = dict(record.described)
    for body in bodies(links, Kind.WINDOWS):
        windows |= from_doc(dict[str, dict[str, Window]], body)
    for body in bodies(links, Kind.DESCRIBED):
        described |= from_doc(dict[str, Described], body)
    plans = {plan.hash: plan for plan in record.plans}
    for body in bodies(links, Kind.PLAN):
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
        played=_all(FaultedTraining, links, Kind.PLAYED),
        fabric=tuple(from_doc(Row, r) for b in bodies(links, Kind.SWEEP) for r in b),
        suspects=pairs[-1] if pairs else record.suspects,
        verdicts=(),
        elapsed_s=max(record.elapsed_s, _seconds(links)),
        head=links[-1].hash,
    )
    states = bodies(links, Kind.STATE)
    return _stated(grown, states[-1]) if states else grown


def _all(kind: type[Entry], links: Sequence[Link], of: Kind) -> tuple[Entry, ...]:
    """Return the bodies of the links of one kind, converted to a dataclass."""
    return tuple(from_doc(kind, body) for body in bodies(links, of))


def _stated(record: RunRecord, body: Json) -> RunRecord:
    """Return the record with the values of the last STATE link."""
    elapsed_s = max(record.elapsed_s, float(body["elapsed_s"]))
    admission = from_doc(tuple[Finding, ...], body["admission"]) if "admission" in body else None
    return replace(
        record,
        notes=tuple(dict.fromkeys((*record.notes, *body["notes"]))),
        out_of_time=tuple(body["out_of_time"]),
        launch_sd=body["launch_sd"],
        nodes=tuple(from_doc(Machine, n) for n in body["nodes"]),
        setups=body["setups"],
        elapsed_s=elapsed_s,
        device_s=elapsed_s * sum(record.settings.nodes),
        admission=record.admission if admission is None else admission,
    )


def _seconds(links: Sequence[Link]) -> float:
    """Return the seconds from the last start or resume of the run to the last link."""
    sittings = [0, *(i for i, link in enumerate(links) if link.kind is Kind.SITTING)]
    first, last = (datetime.datetime.fromisoformat(links[i].at) for i in (sittings[-1], -1))
    return (last - first).total_seconds()
