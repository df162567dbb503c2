"""Name the format of a file that is no trace of torch.profiler, from its first bytes."""

import contextlib
import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

from harness.base.packs import opened

#: Number of first bytes that are looked at.
FIRST = 4096
_TRACE = "export_chrome_trace('t.json.gz'), then scaleproof report timeline t.json.gz"


@dataclass(frozen=True)
class Format:
    """A format of files: the pattern of its first bytes, its name, and the command to type instead.

    ``fix`` may contain ``{path}``.
    """

    begins: bytes
    name: str
    fix: str


#: Formats that people hand over as traces. The first whose pattern fits counts.
FORMATS = (
    Format(rb"PK\x03\x04", "a zip archive", "unzip {path}"),
    Format(rb"BZh[1-9]", "compressed by bzip2", "bunzip2 --keep {path}"),
    Format(rb"\xfd7zXZ", "compressed by xz", "xz --decompress --keep {path}"),
    Format(rb"\x28\xb5\x2f\xfd", "compressed by zstd", "zstd --decompress {path}"),
    Format(rb"\xff\xfe|\xfe\xff", "text in UTF-16", "iconv -f UTF-16 -t UTF-8 {path} > t.json"),
    Format(
        rb"SQLite format 3",
        "an SQLite database, such as Nsight Systems exports",
        "nsys stats {path}",
    ),
    Format(rb"NVNSYSQDREP|.{0,64}QdstrmVersion", "a report of Nsight Systems", "nsys stats {path}"),
    Format(
        rb"\s*\{.{0,400}speedscope\.app", "a profile of speedscope, which has no devices", _TRACE
    ),
    Format(
        rb".{0,4096}rocprof|\"?Kind\"?,\"?Agent_Id",
        "an output of rocprof, which has no steps of a training",
        _TRACE,
    ),
    Format(
        rb".{0,4096}nThread \d+ nGpus|.{0,4096}out-of-place",
        "an output of nccl-tests, which has no steps of a training",
        _TRACE,
    ),
    Format(rb"\n.{0,8}/device:|\n.{0,16}/host:", "an XSpace of JAX or TensorFlow", _TRACE),
    Format(
        rb"\s*\{[^\n]*\}\s*\n\s*\{", "one JSON object a line, which is a log and no trace", _TRACE
    ),
    Format(
        rb".*\"ph\"\s*:\s*\"[be]\"",
        "a Chrome trace of asynchronous spans, as other programs write it",
        _TRACE,
    ),
)


def format_of(path: Path) -> Format | None:
    """Return the format of a file, or None if it is not one of ``FORMATS``."""
    with opened(path) as handle:
        packed = handle.read(2) == b"\x1f\x8b"
        handle.seek(0)
        with gzip.open(handle) if packed else contextlib.nullcontext(handle) as plain:
            try:
                first = plain.read(FIRST)
            except (OSError, EOFError, zlib.error):
                return None  # a compressed file that is cut short
    fitting = (f for f in FORMATS if re.match(f.begins, first, re.DOTALL))
    return next(fitting, None)
