"""Archives that transport runs: a tar file with the digest of every file.

runs -> {path: bytes} -> MANIFEST.json and files -> archive.tar.gz -> checks -> folders of runs

The same runs always give the same archive, byte for byte. Therefore the digest of an archive can be
published before the archive itself.
"""

import filecmp
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.base.files import NO_ROOM, writing_to
from harness.base.packs import SAMPLES, TRACES
from harness.record import chain
from harness.record.record import RunRecord
from harness.record.signature import FILE as SIGNATURE

#: The file of an archive that lists its runs and the digests of its files.
MANIFEST = "MANIFEST.json"
#: The file of the agreed thresholds, if a run is delivered with them.
CONTRACT = "contract.toml"
#: The files of a run that an archive contains in addition to the folders of launches.
_KEPT = ("record.json", "record.sha256", chain.FILE, SIGNATURE)
#: Upper limit of the unpacked size of an archive, as a multiple of its packed size. Records are
#: text and compress well; their samples do not.
MOST_RATIO = 200
#: Unpacked size in bytes that is always permitted, however small the packed archive is.
LEAST_ROOM = 64 << 20
#: Upper limit of the number of files in an archive.
MOST_FILES = 200_000
#: Number of bytes of headers that may precede a file, with what the reader reads ahead.
HEADERS = 1 << 20
#: Number of bytes of a file that are extracted at a time.
PIECE = 1 << 20
#: Pattern of the names of hardware classes, runs and launches. Such a name cannot lead out of a
#: folder.
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}"
#: Pattern of the paths that an archive may contain.
_FILE = re.compile(
    rf"runs/{_NAME}/{_NAME}/({'|'.join(map(re.escape, (*_KEPT, CONTRACT)))}"
    rf"|launches/{_NAME}/(rank[0-9]+\.(npz|trace\.json\.gz)|{SAMPLES}|{TRACES}))"
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One run of an archive.

    ``folder`` is the path of the run in the archive. ``head`` is the hash of the last link of its
    chain. ``redacted_from`` is this hash before names were removed; it is empty if no names were
    removed.
    """

    run: str
    folder: str
    head: str
    redacted_from: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The contents of an archive: its runs, and the sha256 of every file."""

    runs: tuple[Packed, ...]
    files: Mapping[str, str]


def of_run(run: RunRecord) -> str:
    """Return the path of a run in an archive.

    It is also the path below the results folder into which the archive is unpacked.
    """
    return f"runs/{run.machine.hardware_class}/{run.run}"


def files_of(folder: Path, *, traces: bool) -> dict[str, bytes]:
    """Return the contents of the files of a run by their relative path.

    Traces are included if ``traces`` is True. Pages and logs are left out.
    """
    contents = {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    for path in sorted((folder / "launches").glob("*/*")):
        trace = path.name.endswith(".trace.json.gz") or path.name == TRACES
        if path.is_file() and (path.suffix == ".npz" or path.name == SAMPLES or (traces and trace)):
            contents[path.relative_to(folder).as_posix()] = path.read_bytes()
    return contents


def write(runs: Sequence[tuple[Packed, Mapping[str, bytes]]]) -> tuple[bytes, Manifest]:
    """Return the bytes of an archive of these runs, and its manifest."""
    files = {
        f"{packed.folder}/{name}": body for packed, of_run in runs for name, body in of_run.items()
    }
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    manifest = Manifest(runs=tuple(packed for packed, _ in runs), files=digests)
    document = json.dumps(to_doc(manifest), indent=1, sort_keys=True).encode() + b"\n"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in [(MANIFEST, document), *((digest, files[digest]) for digest in digests)]:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(body))
    return gzip.compress(plain.getvalue(), mtime=0), manifest


def unpack(path: Path, results: Path) -> tuple[Manifest, list[Path]]:
    """Write all runs of an archive below ``results``, or none of them.

    Only the user can read the written files. Raises RecordError if the files do not match the
    manifest, or if a different run has the same path. An archive may come from a stranger.
    Therefore only one piece of a file is in memory at a time, and the unpacked size is limited to a
    multiple of the size of the archive.
    """
    is_new = not results.exists()
    results.mkdir(parents=True, exist_ok=True)
    try:
        with (
            writing_to(results),
            tempfile.TemporaryDirectory(prefix=".unpack-", dir=results) as name,
        ):
            return _placed(path, Path(name), results)
    except BaseException:
        if is_new:
            with suppress(OSError):
                results.rmdir()
        raise


def _placed(path: Path, scratch: Path, results: Path) -> tuple[Manifest, list[Path]]:
    """Extract an archive into ``scratch``, check it, and move its files to ``results``."""
    manifest = _checked(path, _extracted(path, scratch), scratch)
    targets = {scratch / name: results / name for name in manifest.files}
    for source, target in targets.items():
        if target.is_file() and not filecmp.cmp(source, target, shallow=False):
            raise RecordError(
                f"{target} exists already and differs from this run in the archive",
                where=str(path),
                fix=f"scaleproof accept unpack {path} --to elsewhere",
            )
    for source, target in targets.items():
        for folder in reversed(target.relative_to(results).parents[:-1]):
            (results / folder).mkdir(mode=0o700, exist_ok=True)
        source.replace(target)
    return manifest, [results / packed.folder for packed in manifest.runs]


def _extracted(path: Path, scratch: Path) -> dict[str, str]:
    """Extract an archive into ``scratch`` and return the sha256 of each file by its name."""
    room_left = max(LEAST_ROOM, MOST_RATIO * path.stat().st_size if path.is_file() else 0)
    digests: dict[str, str] = {}
    try:
        with _Limited(path) as text, tarfile.open(fileobj=text, mode="r|") as tar:
            while (member := tar.next()) is not None:
                room_left -= member.size
                _refuse_strange(path, member, room_left, len(digests))
                text.left += member.size + HEADERS
                digests[member.name] = _written(tar, member, scratch)
    except (OSError, tarfile.TarError, EOFError, zlib.error) as error:
        if getattr(error, "errno", None) in NO_ROOM:
            raise
        reason = getattr(error, "strerror", None) or error
        raise RecordError(
            f"not an archive of runs: {reason}",
            where=str(path),
            expected="a file that scaleproof accept pack wrote",
            fix=f"scaleproof accept pack RUN --to {path.name}",
        ) from None
    return digests


class _Limited(gzip.GzipFile):
    """The text of an archive, which may not exceed what its members announce.

    ``left`` is the number of bytes that may still be read. Without a limit, a long header would
    make the reader keep gigabytes in memory.
    """

    left = HEADERS

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.left -= len(piece)
        if self.left < 0:
            raise tarfile.ReadError("a header in it is too long")
        return piece


def _refuse_strange(path: Path, member: tarfile.TarInfo, left: int, number: int) -> None:
    """Raise RecordError if a member is not a file of a run, or if a size limit is exceeded.

    A member with another path could be written outside the target folder.
    """
    known = member.name == MANIFEST or _FILE.fullmatch(member.name)
    if not member.isreg() or member.issparse() or member.size < 0 or not known:
        raise _damaged(path, f"{member.name[:200]!r} is not a file of a run")
    if left < 0 or number > MOST_FILES or (member.name == MANIFEST and member.size > LEAST_ROOM):
        raise _damaged(path, f"it unpacks to more than {MOST_RATIO} times its size")


def _written(tar: tarfile.TarFile, member: tarfile.TarInfo, scratch: Path) -> str:
    """Extract one member and return its sha256."""
    source = tar.extractfile(member)
    assert source is not None
    target = scratch / member.name
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    digest = hashlib.sha256()
    with open(target, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        while piece := source.read(PIECE):
            digest.update(piece)
            file.write(piece)
    return digest.hexdigest()


def _checked(path: Path, digests: dict[str, str], scratch: Path) -> Manifest:
    """Return the manifest if it matches the files. Raise RecordError otherwise."""
    try:
        digests.pop(MANIFEST)
        manifest = from_doc(Manifest, json.loads((scratch / MANIFEST).read_bytes()), "manifest")
    except (KeyError, ValueError, RecursionError) as error:
        raise _damaged(path, f"its {MANIFEST} cannot be read: {error}") from None
    if strange := sorted(set(digests) ^ set(manifest.files)):
        raise _damaged(
            path, f"{strange[0]} is {'not listed' if strange[0] in digests else 'missing'}"
        )
    if not manifest.runs:
        raise _damaged(path, "its manifest lists no run")
    folders = {run.folder for run in manifest.runs}
    for run in manifest.runs:
        if f"{run.folder}/record.json" not in digests:
            raise _damaged(path, f"the run {run.folder!r} in it has no record.json")
    for name, digest in digests.items():
        if "/".join(name.split("/")[:3]) not in folders:
            raise _damaged(path, f"{name} does not belong to a run in its manifest")
        if digest != manifest.files[name]:
            raise _damaged(path, f"{name} differs from its digest in the manifest")
    return manifest


def _damaged(path: Path, what: str) -> RecordError:
    """Return the error for an archive that was changed after it was packed."""
    return RecordError(
        what,
        where=str(path),
        expected="the archive as it was packed",
        fix="copy it from its source again",
    )
