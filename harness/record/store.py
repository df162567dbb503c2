"""The store of records and samples on disk. It writes every file completely or not at all.

results/runs/<machine>/<run>/
chain.jsonl          the log of the run with all measurements. Each event is one line, which is
                     written to disk immediately
record.json          RunRecord, written when a run begins and when it ends. It contains a digest of
                     its text, which detects edits, not forgery. Older records have the digest in
                     the file record.sha256
launches/<launch>/   the files rank<r>.json and rank<r>.npz of each rank, and logs. If there are
                     many ranks, ranks.zip has the samples, traces.zip has the traces, and the
                     record has the contents of rank<r>.json
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import documents as collected, files, packs
from harness.base.documents import Json, elements, fields, from_doc, to_doc
from harness.base.errors import ChangedError, RecordError
from harness.base.packs import opened, size
from harness.record import chain
from harness.record.launch import LaunchRecord
from harness.record.rank import RankRecord
from harness.record.record import SCHEMA, RunRecord
from harness.record.upgrade import UNCHANGED_SINCE, upgrade

if TYPE_CHECKING:
    import numpy as np

#: Number of launches that are decoded together, which limits the memory for decoding.
AT_ONCE = 256
#: The key in record.json of the digest of its text.
DIGEST = "sha256"
#: The beginning of a record.json whose first key is its digest.
_STAMPED = re.compile(rb'\{\n "%b": "([0-9a-f]{64})",\n' % DIGEST.encode())
_NO_LAUNCHES = '\n "launches": []'
#: Upper limit, in bytes, of the packed size and of the unpacked size of a rank's samples.
MOST_SAMPLES = 1 << 30
#: Names that are safe as parts of a path.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
#: The fix for a file of a record that is missing or was edited.
TAKE = "git checkout -- {}, or copy the run's folder from its source again"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The measured values of one rank in each step.

    ``marks_s`` are the times in seconds at which the window began (its barrier) and at which each
    step ended, so it has steps + 1 entries. ``loss`` and ``step_s`` have one entry for each step.
    ``rss_bytes`` is the resident memory; 0 if it was not recorded. ``sample_ids`` are the training
    samples that the rank was given, and ``content`` has a hash of each. ``seen`` has hashes of the
    training samples that reached the model, with shape (steps, samples); 0 = none, and None until
    schema 5. ``came`` is the number of training samples that reached the model; it is present if
    ``seen`` does not cover all steps.

    A user's training has ``parts_s``, the seconds of each ``StepPart`` with shape (steps, parts);
    ``begun``, the number of passes over loaders that begin in each step; and ``ready_s``, the wall
    clock time at which the last gradients of the step were complete (NaN: unknown). Its events are
    ``cycles``, values at the start of each update cycle, with one row more than there are cycles
    (``analysis/script/facts.py`` names the columns); ``rows``, the rows that reached each root and
    its calls, with shape (2, roots, cycles); ``edges_ns``, the wall clock time at the beginning of
    each step and the end of the last; ``issued``, the collectives that the flight recorder kept:
    number of the operation, bytes, wall clock time in ns; ``passes_ns``, the last forward passes:
    number of the root, begin and end; and ``changed``: whether each examined update changed a
    parameter.

    A bit check has ``bits``, the hashes of results with shape (steps, micro-batches, output and
    gradients); ``received``, the hashes of the data from each rank with shape (steps, ranks); and
    ``stored``, the hashes of the parameters and of a copy that was read back. A reference has
    ``replicates``, the losses of trainings with other rounding, with shape (replicates, steps).
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
    parts_s: np.ndarray | None = None
    begun: np.ndarray | None = None
    ready_s: np.ndarray | None = None
    cycles: np.ndarray | None = None
    rows: np.ndarray | None = None
    edges_ns: np.ndarray | None = None
    issued: np.ndarray | None = None
    passes_ns: np.ndarray | None = None
    changed: np.ndarray | None = None


def write_text(path: Path, text: str) -> None:
    """Write a file completely or not at all."""
    files.write({path: text})


def written(record: RunRecord) -> str:
    """Return the text of ``record.json``.

    The first key is the sha256 of the text without the line of this key. Launches are converted one
    by one, because converting thousands of launches together would need much memory.
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
    """Write ``record.json`` completely or not at all. Raise FullDiskError if the disk is full."""
    with files.writing_to(folder):
        files.write({folder / "record.json": written(record)})


def load(folder: Path, links: Sequence[chain.Link] | None = None) -> RunRecord:
    """Read the record of a run, and extend the record of an interrupted run from its chain.

    ``folder`` is the folder of the run or its record.json. ``links`` is the chain, if the caller
    has read it already. Raises RecordError for a record that is invalid. If the chain has later
    launches than the record, the verdicts are dropped, as in ``chain.folded``.
    """
    with collected.paused():
        return _loaded(folder, links)


def load_whole(folder: Path) -> RunRecord | None:
    """Return a complete run without reading its chain, which the caller has checked before.

    Return None if the run is not complete, because then some of its results are only in the chain.
    """
    with collected.paused():
        path = folder / "record.json" if folder.is_dir() else folder
        run = _record(path) if path.is_file() else None
        return _named(run) if run is not None and run.complete else None


def _loaded(folder: Path, links: Sequence[chain.Link] | None) -> RunRecord:
    """Read a record and its chain. Raise RecordError if one of them is invalid."""
    path = folder / "record.json" if folder.is_dir() else folder
    try:
        begun = _record(path) if path.is_file() else None
        if begun is not None and begun.complete:
            for _ in chain.walk(path.parent) if links is None else ():
                pass  # The record has the contents, so the chain is only checked.
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
        raise RecordError(
            "the file is nested too deeply to be a record",
            where=str(path),
            fix=TAKE.format(shlex.quote(str(path))),
        ) from None
    except ValueError as error:
        raise RecordError(
            str(error), where=str(path), fix="restore this file, or measure again"
        ) from None


def _record(path: Path) -> RunRecord:
    """Read record.json. Raise RecordError if it was edited, ValueError if it is not a record."""
    try:
        with files.opened(path) as file:
            text = file.read()
        text.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(
            f"cannot be read: {error}", where=str(path), fix=TAKE.format(shlex.quote(str(path)))
        ) from None
    beside = path.with_name("record.sha256")
    wanted = beside.read_bytes().strip().decode(errors="replace") if beside.is_file() else ""
    digest = hashlib.sha256()
    if stamp := _STAMPED.match(text):
        wanted = stamp[1].decode()
        digest.update(b"{\n")
    digest.update(memoryview(text)[stamp.end() if stamp else 0 :])
    if wanted and wanted != digest.hexdigest():
        raise ChangedError(
            "record.json was changed after it was written",
            where=str(path),
            expected=f"sha256 {wanted[:12]}...",
            fix=TAKE.format(shlex.quote(str(path))),
        )
    doc, launches = _apart(text)
    if stamp is not None:
        doc.pop(DIGEST)
    del text, stamp  # Free memory, because only the launches are still needed.
    record = from_doc(RunRecord, upgrade(doc, SCHEMA), "record")
    return replace(record, launches=tuple(_launches(launches))) if launches else record


def _apart(text: bytes) -> tuple[Json, list[bytes]]:
    """Return the document of a record without launches, and the texts of its launches in groups.

    Without the groups, thousands of launches would be in memory three times. If the text cannot be
    split, the list of groups is empty and the document includes the launches.
    """
    try:
        parts = fields(text)
        launches = elements(parts.pop("launches", b"[]"))
        doc: Json = {name: json.loads(bytes(value)) for name, value in parts.items()}
    except ValueError:  # another layout: the caller then decodes the whole text
        return json.loads(text), []
    if launches and doc.get("schema") not in range(UNCHANGED_SINCE, SCHEMA + 1):
        return json.loads(text), []
    begins = range(0, len(launches), AT_ONCE)
    return doc, [b"[" + b",".join(launches[i : i + AT_ONCE]) + b"]" for i in begins]


def _launches(texts: list[bytes]) -> Iterator[LaunchRecord]:
    """Yield the launches. Groups are decoded one at a time, and each text is freed after
    decoding.
    """
    texts.reverse()
    number = 0
    while texts:
        for launch in json.loads(texts.pop()):
            yield from_doc(LaunchRecord, launch, f"record.launches[{number}]")
            number += 1


def _named(record: RunRecord) -> RunRecord:
    """Return the record if its names are safe and its times finite, because a name becomes
    a path.
    """
    for name in (record.run, *(x.launch for x in record.launches)):
        if not _PLAIN.fullmatch(name):
            raise ValueError(
                f"{name!r} is not the name of a run or launch: expected letters, digits, . + - _"
            )
    for launch in record.launches:
        if not launch.launch.rpartition("-")[2].isdigit():
            raise ValueError(f"{launch.launch!r} has no number at its end")
    for seconds in (record.elapsed_s, record.device_s, *(x.wall_s for x in record.launches)):
        if not math.isfinite(seconds):
            raise ValueError(f"a time is {seconds} s, expected a finite number")
    return record


def samples_path(folder: Path, launch: str, rank: int) -> Path:
    """Return the path of a rank's samples."""
    return folder / "launches" / launch / f"rank{rank}.npz"


def load_samples(folder: Path, launch: str, rank: RankRecord) -> Samples:
    """Read the samples of one rank. Raise RecordError if they are missing or were changed."""
    path = samples_path(folder, launch, rank.rank)
    try:
        # Limit the number of bytes, because read() allocates the requested number in advance.
        num_bytes = min(size(path), MOST_SAMPLES)
        with opened(path) as handle:
            raw = handle.read(num_bytes + 1)
    except (OSError, zipfile.BadZipFile):
        raise RecordError(
            "samples are missing", where=str(path), fix=TAKE.format(shlex.quote(str(path)))
        ) from None
    if hashlib.sha256(raw).hexdigest() != rank.samples_sha256:
        raise RecordError(
            "samples were changed after they were written",
            where=str(path),
            expected=f"sha256 {rank.samples_sha256[:12]}...",
            fix=TAKE.format(shlex.quote(str(path))),
        )
    try:
        return Samples(**packs.arrays(raw, MOST_SAMPLES))
    except ValueError as error:
        raise RecordError(
            f"samples cannot be read: {error}",
            where=str(path),
            fix=TAKE.format(shlex.quote(str(path))),
        ) from None
