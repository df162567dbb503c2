"""Packs: many ranks' files as one, so that what a launch of hundreds leaves is a handful of files.

A path stays what it was before: it is looked for by itself, then among those that lie together.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

#: Ranks of a launch whose files are packed.
MANY = 16
#: Where files lie together, by how their names end; what ends otherwise is in the record, too.
SAMPLES = "ranks.zip"
TRACES = "traces.zip"
PACKS = {".npz": SAMPLES, ".trace.json.gz": TRACES, ".spans.json": TRACES}


def pack(where: Path, ranks: Sequence[int]) -> None:
    """Put the files of many ranks together; what each wrote beside them is in the record."""
    if len(ranks) <= MANY:
        return
    for pack in dict.fromkeys(PACKS.values()):
        ends = [end for end, name in PACKS.items() if name == pack]
        loose_files = [
            p for r in ranks for entry in ends if (p := where / f"rank{r}{entry}").is_file()
        ]
        if loose_files:
            _together(where / pack, loose_files)
    for rank in ranks:
        (where / f"rank{rank}.json").unlink(missing_ok=True)


def _together(pack: Path, left: Sequence[Path]) -> None:
    """One after the other, so that no more than one file is held; all of it or nothing is there."""
    part = pack.with_suffix(".part")
    with zipfile.ZipFile(part, "w") as together:  # they are compressed already
        for path in left:
            with together.open(path.name, "w") as into, path.open("rb") as source:
                shutil.copyfileobj(source, into)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(pack)
    for path in left:
        path.unlink()


def is_there(path: Path) -> bool:
    """Whether a rank's file is there, by itself or with those of others."""
    return path.is_file() or _member(path) is not None


def opened(path: Path) -> IO[bytes]:
    """A rank's file as it was written; OSError where it is nowhere, or cannot be read."""
    if path.is_file() or (pack := _pack(path)) is None:
        return path.open("rb")
    try:
        with zipfile.ZipFile(pack) as together:  # what is open in it keeps the file open
            return together.open(path.name)
    except (KeyError, zipfile.BadZipFile) as error:
        raise OSError(str(error)) from None


def size(path: Path) -> int:
    """Bytes of a rank's file; OSError where it is nowhere."""
    member = None if path.is_file() else _member(path)
    return path.stat().st_size if member is None else member.file_size


def _pack(path: Path) -> Path | None:
    """Where a file lies with others, if it does."""
    name = next((pack for end, pack in PACKS.items() if path.name.endswith(end)), None)
    pack = None if name is None else path.with_name(name)
    return pack if pack is not None and pack.is_file() else None


def _member(path: Path) -> zipfile.ZipInfo | None:
    if (pack := _pack(path)) is None:
        return None
    try:
        with zipfile.ZipFile(pack) as together:
            return together.getinfo(path.name)
    except (KeyError, zipfile.BadZipFile):
        return None
