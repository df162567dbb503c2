"""Fast reading of the arrays in small ``.npz`` files, and packs of the files of many ranks.

A pack is a zip file in the folder of a launch, which replaces one file for each rank.
"""

from __future__ import annotations

import functools
import io
import math
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from harness.base import files

#: The compression methods of zip members.
_STORED = 0
_DEFLATED = 8
#: The layout of the end record of a zip file: signature, disks and numbers of members, size and
#: offset of the directory, length of the comment.
_END = struct.Struct("<4s4H2LH")
#: The layout of a member's entry in the directory: signature, versions, flags, method, time, CRC,
#: packed and unpacked size, lengths of name, extra field and comment, disk, attributes, offset.
_MEMBER = struct.Struct("<4s2H2H4x3L3H2H2L")
#: The layout of the header before a member's bytes: signature, lengths of name and extra field.
_LOCAL = struct.Struct("<4s22x2H")


class _Member(NamedTuple):
    """One member of a zip file, as its directory describes it."""

    name: str
    method: int
    crc: int
    packed_bytes: int
    whole_bytes: int
    place: int


def arrays(raw: bytes, most_bytes: int) -> dict[str, Any]:
    """Return the arrays of a ``.npz`` file by name. They are writable.

    Raises ValueError if the bytes are not such a file, if an array has less data than its header
    states, or if the arrays and the file together exceed ``most_bytes``.
    """
    try:
        members = _members(raw)
        num_bytes = len(raw) + sum(member.whole_bytes for member in members)
        if num_bytes > most_bytes:
            raise ValueError(f"{num_bytes} bytes exceed the limit of {most_bytes}")
        return {m.name.removesuffix(".npy"): _array(m.name, _whole(raw, m)) for m in members}
    except (struct.error, zlib.error) as error:
        raise ValueError(str(error)) from None


def _members(raw: bytes) -> list[_Member]:
    """Return the members that the directory at the end of the file lists."""
    signature, _, _, _, count, size, place, _ = _END.unpack_from(raw, len(raw) - _END.size)
    if signature != b"PK\5\6" or place + size + _END.size != len(raw):
        raise ValueError("File is not a zip file that numpy wrote")
    members = []
    for _ in range(count):
        mark, _, _, flags, method, crc, packed, whole, name, extra, comment, *_, at = (
            _MEMBER.unpack_from(raw, place)
        )
        if mark != b"PK\1\2" or flags & ~_NAMED or method not in (_STORED, _DEFLATED):
            raise ValueError("File is not a zip file that numpy wrote")
        begin = place + _MEMBER.size
        text = raw[begin : begin + name].decode()
        members.append(_Member(text, method, crc, packed, whole, at))
        place = begin + name + extra + comment
    return members


#: The flag of a member whose name is encoded in UTF-8.
_NAMED = 1 << 11


def _whole(raw: bytes, member: _Member) -> bytes:
    """Return a member's bytes, unpacked and verified by their checksum."""
    mark, name, extra = _LOCAL.unpack_from(raw, member.place)
    begin = member.place + _LOCAL.size + name + extra
    body = raw[begin : begin + member.packed_bytes]
    if member.method == _DEFLATED:
        body = zlib.decompressobj(-zlib.MAX_WBITS).decompress(body, member.whole_bytes + 1)
    if mark != b"PK\3\4" or len(body) != member.whole_bytes or zlib.crc32(body) != member.crc:
        raise ValueError(f"{member.name} does not match its checksum")
    return body


def _array(name: str, body: bytes) -> Any:
    """Return one array of a file. Raise ValueError if it has less data than its header states."""
    import numpy as np  # imported here because listing and collecting do not need numpy

    begin = _header_end(body)
    shape, by_columns, kind = _header(body[:begin])
    if math.prod(shape) * kind.itemsize > len(body) - begin:
        raise ValueError(f"{name} claims the shape {shape}, but has too few bytes")
    order: Literal["C", "F"] = "F" if by_columns else "C"
    return np.ndarray(shape, kind, buffer=body, offset=begin, order=order).copy()


def _header_end(body: bytes) -> int:
    """Return the offset of an array's values in a ``.npy`` file.

    They follow the magic string, the version, the length of the header, and the header.
    """
    width = 2 if body[6:7] == b"\x01" else 4
    return 8 + width + int.from_bytes(body[8 : 8 + width], "little")


@functools.lru_cache(maxsize=4096)
def _header(text: bytes) -> tuple[tuple[int, ...], bool, Any]:
    """Return (shape, whether the order is Fortran's, dtype) of an array from its header.

    The result is cached, because many arrays have equal headers.
    """
    import numpy as np

    handle = io.BytesIO(text)
    version = np.lib.format.read_magic(handle)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read(handle, max_header_size=10_000)
    if kind.hasobject:
        raise ValueError("arrays of Python objects are not allowed")
    return shape, by_columns, kind


#: Largest number of ranks whose files stay separate. The files of more ranks are put into packs.
MANY = 16
#: The name of the pack of samples.
SAMPLES = "ranks.zip"
#: The name of the pack of traces.
TRACES = "traces.zip"
#: The pack for each suffix of a file.
PACKS = {".npz": SAMPLES, ".trace.json.gz": TRACES, ".spans.json": TRACES}


def pack(where: Path, ranks: Sequence[int]) -> None:
    """Put the files of many ranks into packs, and remove the JSON files of the ranks.

    The record has the contents of the JSON files.
    """
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
    """Move files into a new pack. The pack appears atomically, with all files in it."""
    part = pack.with_suffix(".part")
    # The pack is not compressed, because the files in it already are.
    with zipfile.ZipFile(part, "w") as together:
        for path in left:
            with together.open(path.name, "w") as into, path.open("rb") as source:
                shutil.copyfileobj(source, into)
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(pack)
    for path in left:
        path.unlink()


def is_there(path: Path) -> bool:
    """Return whether a rank's file exists as a separate file or in a pack."""
    return path.is_file() or _member(path) is not None


def opened(path: Path) -> IO[bytes]:
    """Open a rank's file, which may be a separate file or in a pack.

    Raises OSError if it does not exist or is unreadable.
    """
    if path.is_file() or (pack := _pack(path)) is None:
        return files.opened(path)
    try:
        with zipfile.ZipFile(pack) as together:  # the returned file object keeps the pack open
            return together.open(path.name)
    except (KeyError, zipfile.BadZipFile) as error:
        raise OSError(str(error)) from None


def size(path: Path) -> int:
    """Return the size of a rank's file in bytes. Raise OSError if it does not exist."""
    member = None if path.is_file() else _member(path)
    return path.stat().st_size if member is None else member.file_size


def _pack(path: Path) -> Path | None:
    """Return the pack that may contain a file, or None if there is no such pack."""
    name = next((pack for end, pack in PACKS.items() if path.name.endswith(end)), None)
    pack = None if name is None else path.with_name(name)
    return pack if pack is not None and pack.is_file() else None


def _member(path: Path) -> zipfile.ZipInfo | None:
    """Return the entry of a file in its pack, or None."""
    if (pack := _pack(path)) is None:
        return None
    try:
        with zipfile.ZipFile(pack) as together:
            return together.getinfo(path.name)
    except (KeyError, zipfile.BadZipFile):
        return None
