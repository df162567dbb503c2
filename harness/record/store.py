"""The store of records and samples on disk. It writes every file completely or not at all.

results/runs/<machine>/<run>/
chain.jsonl          the log of the run, one line per event, on disk at once; has all measurements
record.json          RunRecord, written when a run begins and when it ends. It has a digest of
                     itself, which detects edits, not forgery (older ones: record.sha256)
launches/<launch>/   rank<r>.json and rank<r>.npz of the ranks, and logs. With many ranks,
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

#: Number of launches that are decoded at once.
AT_ONCE = 256
#: The key of record.json with its digest.
DIGEST = "sha256"
#: The beginning of a record.json that has its digest in its first key.
_STAMPED = re.compile(rb'\{\n "%b": "([0-9a-f]{64})",\n' % DIGEST.encode())
_NO_LAUNCHES = '\n "launches": []'
#: Upper limit of a rank's samples in bytes, packed and unpacked together.
MOST_SAMPLES = 1 << 30
#: Names that are safe as parts of a path.
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
#: The fix for a file of a record that is missing or was edited.
TAKE = "git checkout -- FOLDER, or copy the run's folder from its source again"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """The samples of one rank. ``marks_s`` has steps + 1 entries; the first is the barrier of the
    window.

    ``rss_bytes`` is 0 if memory was not recorded. ``sample_ids`` are the samples that were handed
    out, ``content`` has a hash of each. ``seen`` has hashes of the samples that reached the model
    (steps, samples; 0 = none), None until schema 5. ``came`` is the number of samples that reached
    it, if not all steps were examined that closely. A bit check has ``bits``, hashes of the results
    (steps, micro-batches, output and gradients), ``received``, hashes of the data from each rank
    (steps, ranks), and ``stored``, hashes of the parameters and of a copy that was read back. A
    reference has ``replicates``, the losses of trainings with other rounding (replicates, steps).
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
    """Write a file completely or not at all."""
    files.write({path: text})


def written(record: RunRecord) -> str:
    """Return the text of ``record.json``. Its first key is the sha256 of the text without that
    line.

    Launches are converted one by one, because the document of thousands would need much memory.
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
    """Read the record in a run's folder (or record.json), and add what only its chain has.

    ``links`` is the chain, if the caller has read it already. Raises RecordError for a record that
    is invalid. Verdicts older than a launch are dropped, as in ``chain.folded``.
    """
    with collected.paused():
        return _loaded(folder, links)


def load_whole(folder: Path) -> RunRecord | None:
    """Return a complete run without reading its chain, which was checked before.

    Return None if the run is not complete, because then a part of it is only in its chain.
    """
    with collected.paused():
        path = folder / "record.json" if folder.is_dir() else folder
        run = _record(path) if path.is_file() else None
        return _named(run) if run is not None and run.complete else None


def _loaded(folder: Path, links: Sequence[chain.Link] | None) -> RunRecord:
    """Read a record and its chain. Raise RecordError for invalid ones."""
    path = folder / "record.json" if folder.is_dir() else folder
    try:
        begun = _record(path) if path.is_file() else None
        if begun is not None and begun.complete:
            for _ in chain.walk(path.parent) if links is None else ():
                pass  # only check the chain: the record has its contents
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
    """Read record.json. Raise RecordError if it was edited, ValueError if it is not a record."""
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
    del text, stamp  # free memory: only the launches are still needed
    record = from_doc(RunRecord, upgrade(doc, SCHEMA), "record")
    return replace(record, launches=tuple(_launches(launches))) if launches else record


def _apart(text: bytes) -> tuple[Json, list[bytes]]:
    """Return the document of a record without launches, and the texts of its launches in groups.

    This avoids holding thousands of launches in memory three times. If the text cannot be split,
    the groups are empty and the document has the launches.
    """
    try:
        parts = fields(text)
        launches = elements(parts.pop("launches", b"[]"))
        doc: Json = {name: json.loads(bytes(value)) for name, value in parts.items()}
    except ValueError:  # not in our layout: decoding all of it reports what is wrong
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
        # read() allocates as many bytes as it is asked for
        num_bytes = min(size(path), MOST_SAMPLES)
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
