"""The store: how a record and its samples lie on disk, written whole or not at all.

results/runs/<machine>/<run>/
record.json          RunRecord, rewritten atomically after every launch block
record.sha256        digest of record.json: detects edits, not forgery
launches/<launch>/   rank<r>.json and rank<r>.npz as the ranks left them, logs
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.base import files
from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.record.rank import RankRecord
from harness.record.record import SCHEMA, RunRecord
from harness.record.upgrade import upgrade

if TYPE_CHECKING:
    import numpy as np

TAKE = "git checkout -- FOLDER, or copy the run's folder from its source again"


@dataclass(frozen=True, kw_only=True)
class Samples:
    """One rank's samples. ``marks_s`` has steps + 1 entries, the first is the window's barrier.

    ``rss_bytes`` is 0 where nobody looked. ``sample_ids`` are those that were handed out,
    ``content`` a hash of each, ``seen`` hashes of what reached the model (steps, samples; 0 =
    none); None until schema 5. ``came`` is how many samples did so, where not all steps were looked
    at that closely.
    """

    marks_s: np.ndarray
    loss: np.ndarray
    sample_ids: np.ndarray
    rss_bytes: np.ndarray
    step_s: np.ndarray
    seen: np.ndarray | None = None
    content: np.ndarray | None = None
    came: np.ndarray | None = None


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    files.write({path: text})


def save(record: RunRecord, folder: Path) -> None:
    """Write ``record.json`` and its digest, both or none; FullDiskError if there is no room."""
    text = json.dumps(to_doc(record), indent=1) + "\n"
    digest = hashlib.sha256(text.encode()).hexdigest() + "\n"
    with files.told(folder):
        files.write({folder / "record.json": text, folder / "record.sha256": digest})


def load(folder: Path) -> RunRecord:
    """Read a run's folder (or its record.json); RecordError says what is wrong with it."""
    path = folder / "record.json" if folder.is_dir() else folder
    if not path.is_file():
        raise RecordError(
            "no record.json here", where=str(folder), expected="a run's folder",
            fix="ls results/runs/*/*",
        )  # fmt: skip
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"cannot be read: {error}", where=str(path), fix=TAKE) from None
    digest = path.with_name("record.sha256")
    wanted = hashlib.sha256(text.encode()).hexdigest().encode()
    if digest.is_file() and digest.read_bytes().strip() != wanted:
        raise RecordError(
            "record.json was changed after it was written", where=str(path),
            expected=f"the digest in {digest.name}", fix=TAKE,
        )  # fmt: skip
    try:
        return from_doc(RunRecord, upgrade(json.loads(text), SCHEMA), "record")
    except RecursionError:
        raise RecordError("nested too deeply to be a record", where=str(path), fix=TAKE) from None
    except ValueError as error:
        raise RecordError(str(error), where=str(path), fix="measure again, or restore it") from None


def samples_path(folder: Path, launch: str, rank: int) -> Path:
    return folder / "launches" / launch / f"rank{rank}.npz"


def load_samples(folder: Path, launch: str, rank: RankRecord) -> Samples:
    """Read one rank's samples and check their digest."""
    import numpy as np  # what only lists and collects has none

    path = samples_path(folder, launch, rank.rank)
    try:
        raw = path.read_bytes()
    except OSError:
        raise RecordError("samples are missing", where=str(path), fix=TAKE) from None
    if hashlib.sha256(raw).hexdigest() != rank.samples_sha256:
        raise RecordError(
            "samples were changed after they were written", where=str(path),
            expected=f"sha256 {rank.samples_sha256[:12]}...", fix=TAKE,
        )  # fmt: skip
    try:
        with np.load(io.BytesIO(raw), allow_pickle=False) as arrays:
            return Samples(**{name: arrays[name] for name in arrays.files})
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise RecordError(f"samples cannot be read: {error}", where=str(path), fix=TAKE) from None
