"""The store: how a record and its samples lie on disk, written whole or not at all.

results/runs/<machine>/<run>/
chain.jsonl          what happened, a line each, on disk as it happens: all that is measured
record.json          RunRecord, written when a run begins and when it ends, with a digest of itself
                     that detects edits, not forgery (older ones have it in record.sha256)
launches/<launch>/   rank<r>.json and rank<r>.npz as the ranks left them, logs; of many ranks
                     ranks.zip has the samples, traces.zip the traces, and the record the rest
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import documents as collected, files, packs
from harness.base.documents import Json, elements, fields, from_doc, to_doc
from harness.base.errors import RecordError
from harness.base.packs import opened, size
from harness.record import chain
from harness.record.launch import LaunchRecord
from harness.record.rank import RankRecord
from harness.record.record import SCHEMA, RunRecord
from harness.record.upgrade import UNCHANGED_SINCE, upgrade

if TYPE_CHECKING:
    import numpy as np

#: Launches that are decoded at once.
AT_ONCE = 256
#: The key of record.json that has its digest.
DIGEST = "sha256"
_STAMPED = re.compile(rb'\{\n "%b": "([0-9a-f]{64})",\n' % DIGEST.encode())
_NO_LAUNCHES = '\n "launches": []'
#: Bytes of a rank's samples at most, packed and unpacked together.
MOST_SAMPLES = 1 << 30
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
TAKE = "git checkout -- FOLDER, or copy the run's folder from its source again"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """One rank's samples. ``marks_s`` has steps + 1 entries, the first is the window's barrier.

    ``rss_bytes`` is 0 where nobody looked. ``sample_ids`` are those that were handed out,
    ``content`` a hash of each, ``seen`` hashes of what reached the model (steps, samples; 0 =
    none); None until schema 5. ``came`` is how many samples did so, where not all steps were looked
    at that closely. Of a check of bits: ``bits`` are hashes of what was computed (steps,
    micro-batches, output and gradients), ``received`` of what came from each rank (steps, ranks),
    ``stored`` of the parameters and of what was read back of them. Of a reference: ``replicates``
    are the losses of trainings that round otherwise (replicates, steps).
    """

    marks_s: np.ndarray
    loss: np.ndarray
    sample_ids: np.ndarray
    rss_bytes: np.ndarray
    step_s: np.ndarray
    seen: np.ndarray | None = None
    content: np.ndarray | None = None
    came: np.ndarray | None = None
    bits: np.ndarray | None = None
    received: np.ndarray | None = None
    stored: np.ndarray | None = None
    replicates: np.ndarray | None = None


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    files.write({path: text})


def written(record: RunRecord) -> str:
    """The text of ``record.json``: its first key is the sha256 of the text without that line.

    Launches are written one by one, since the document of thousands would be held beside them.
    """
    rest = json.dumps(to_doc(replace(record, launches=())), indent=1) + "\n"
    if record.launches:
        before, empty, after = rest.partition(_NO_LAUNCHES)
        assert empty
        documents = (
            json.dumps(to_doc(launch), indent=1).replace("\n", "\n  ") for launch in record.launches
        )
        rest = f'{before}\n "launches": [\n  ' + ",\n  ".join(documents) + f"\n ]{after}"
    digest = hashlib.sha256(rest.encode()).hexdigest()
    return f'{{\n "{DIGEST}": "{digest}",\n{rest[2:]}'


def save(record: RunRecord, folder: Path) -> None:
    """Write ``record.json``, whole or not at all; FullDiskError if there is no room."""
    with files.writing_to(folder):
        files.write({folder / "record.json": written(record)})


def load(folder: Path, links: Sequence[chain.Link] | None = None) -> RunRecord:
    """Read a run's folder (or its record.json), and what only its chain has; ``links`` of who has
    read the chain already.

    RecordError says what is wrong with it. Verdicts older than a launch are left out, as
    ``folding`` says.
    """
    with collected.paused():
        return _loaded(folder, links)


def load_whole(folder: Path) -> RunRecord | None:
    """Loads a complete run whose chain was found whole before: that is not read again. None of one
    that is not complete, and has part of its contents in its chain.
    """
    with collected.paused():
        path = folder / "record.json" if folder.is_dir() else folder
        run = _record(path) if path.is_file() else None
        return _named(run) if run is not None and run.complete else None


def _loaded(folder: Path, links: Sequence[chain.Link] | None) -> RunRecord:
    path = folder / "record.json" if folder.is_dir() else folder
    try:
        begun = _record(path) if path.is_file() else None
        if begun is not None and begun.complete:
            for _ in chain.walk(path.parent) if links is None else ():
                pass  # whole, or an error: the record has what it says
            return _named(begun)
        links = chain.read(path.parent) if links is None else links
        if begun is None and not links:
            raise RecordError(
                "no record.json here",
                where=str(folder),
                expected="a run's folder",
                fix="ls results/runs/*/*",
            )
        begun = begun or chain.begun(links, str(path.parent))
        return _named(chain.folded(begun, links))
    except RecursionError:
        raise RecordError("nested too deeply to be a record", where=str(path), fix=TAKE) from None
    except ValueError as error:
        raise RecordError(str(error), where=str(path), fix="measure again, or restore it") from None


def _record(path: Path) -> RunRecord:
    """Reads record.json; RecordError if it was edited, ValueError if it is no record."""
    try:
        text = path.read_bytes()
        text.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), fix=TAKE) from None
    beside = path.with_name("record.sha256")
    wanted = beside.read_bytes().strip().decode(errors="replace") if beside.is_file() else ""
    digest = hashlib.sha256()
    if stamp := _STAMPED.match(text):
        wanted = stamp[1].decode()
        digest.update(b"{\n")
    digest.update(memoryview(text)[stamp.end() if stamp else 0 :])
    if wanted and wanted != digest.hexdigest():
        raise RecordError(
            "record.json was changed after it was written",
            where=str(path),
            expected=f"sha256 {wanted[:12]}...",
            fix=TAKE,
        )
    doc, launches = _apart(text)
    if stamp is not None:
        doc.pop(DIGEST)
    del text, stamp  # what is left of it are the launches
    record = from_doc(RunRecord, upgrade(doc, SCHEMA), "record")
    return replace(record, launches=tuple(_launches(launches))) if launches else record


def _apart(text: bytes) -> tuple[Json, list[bytes]]:
    """A record's document, and its launches as texts of some each, if they can be decoded so:
    thousands of them would else be held three times over.
    """
    try:
        parts = fields(text)
        launches = elements(parts.pop("launches", b"[]"))
        doc: Json = {name: json.loads(bytes(value)) for name, value in parts.items()}
    except ValueError:  # not written as we do: decoding all of it says what is wrong
        return json.loads(text), []
    if launches and doc.get("schema") not in range(UNCHANGED_SINCE, SCHEMA + 1):
        return json.loads(text), []
    begins = range(0, len(launches), AT_ONCE)
    return doc, [b"[" + b",".join(launches[i : i + AT_ONCE]) + b"]" for i in begins]


def _launches(texts: list[bytes]) -> Iterator[LaunchRecord]:
    """Some at a time: names of one text are held once, and each text until it is decoded."""
    texts.reverse()
    number = 0
    while texts:
        for launch in json.loads(texts.pop()):
            yield from_doc(LaunchRecord, launch, f"record.launches[{number}]")
            number += 1


def _named(record: RunRecord) -> RunRecord:
    """The record, if its names are plain ones and its seconds are: a name becomes a path."""
    for name in (record.run, *(x.launch for x in record.launches)):
        if not _PLAIN.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a run or launch: letters, digits, . + - _")
    for launch in record.launches:
        if not launch.launch.rpartition("-")[2].isdigit():
            raise ValueError(f"{launch.launch!r} has no number at its end")
    for seconds in (record.elapsed_s, record.device_s, *(x.wall_s for x in record.launches)):
        if not math.isfinite(seconds):
            raise ValueError(f"a time of {seconds} s")
    return record


def samples_path(folder: Path, launch: str, rank: int) -> Path:
    return folder / "launches" / launch / f"rank{rank}.npz"


def load_samples(folder: Path, launch: str, rank: RankRecord) -> Samples:
    """Read one rank's samples and check their digest."""
    path = samples_path(folder, launch, rank.rank)
    try:
        num_bytes = min(size(path), MOST_SAMPLES)  # as many bytes are allocated as are asked for
        with opened(path) as handle:
            raw = handle.read(num_bytes + 1)
    except (OSError, zipfile.BadZipFile):
        raise RecordError("samples are missing", where=str(path), fix=TAKE) from None
    if hashlib.sha256(raw).hexdigest() != rank.samples_sha256:
        raise RecordError(
            "samples were changed after they were written",
            where=str(path),
            expected=f"sha256 {rank.samples_sha256[:12]}...",
            fix=TAKE,
        )
    try:
        return Samples(**packs.arrays(raw, MOST_SAMPLES))
    except ValueError as error:
        raise RecordError(f"samples cannot be read: {error}", where=str(path), fix=TAKE) from None
