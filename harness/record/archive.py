"""One file for records that travel: a tar of runs with the digest of every file.

    runs -> {path: bytes} -> MANIFEST.json, files -> archive.tar.gz -> checked -> folders again

The same runs make the same bytes, so that the digest of an archive can be told beforehand.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.base.files import put
from harness.base.packs import SAMPLES, TRACES
from harness.record import chain
from harness.record.record import RunRecord
from harness.record.signature import FILE as SIGNATURE

MANIFEST = "MANIFEST.json"
#: What a run consists of, beside the folders of its launches.
_KEPT = ("record.json", "record.sha256", chain.FILE, SIGNATURE)
#: A file larger than this is no part of a record: bytes.
LARGEST = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Packed:
    """One run of an archive; ``redacted_from`` is the last link of its chain before names were
    taken out, empty where they were not.
    """

    run: str
    folder: str
    head: str
    redacted_from: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What an archive holds: its runs, and the sha256 of every file."""

    runs: tuple[Packed, ...]
    files: Mapping[str, str]


def of_run(run: RunRecord) -> str:
    """Where a run lies in an archive, and below the results that it is unpacked to."""
    return f"runs/{run.machine.hardware_class}/{run.run}"


def files_of(folder: Path, *, traces: bool) -> dict[str, bytes]:
    """The files of a run by their path in it; page and logs are none, ``traces`` if wanted."""
    out = {name: (folder / name).read_bytes() for name in _KEPT if (folder / name).is_file()}
    for path in sorted((folder / "launches").glob("*/*")):
        trace = path.name.endswith(".trace.json.gz") or path.name == TRACES
        if path.is_file() and (path.suffix == ".npz" or path.name == SAMPLES or (traces and trace)):
            out[path.relative_to(folder).as_posix()] = path.read_bytes()
    return out


def write(runs: Sequence[tuple[Packed, Mapping[str, bytes]]]) -> tuple[bytes, Manifest]:
    """The archive's bytes, and what it holds."""
    files = {f"{p.folder}/{name}": body for p, of_run in runs for name, body in of_run.items()}
    digests = {name: hashlib.sha256(files[name]).hexdigest() for name in sorted(files)}
    manifest = Manifest(runs=tuple(p for p, _ in runs), files=digests)
    document = json.dumps(to_doc(manifest), indent=1, sort_keys=True).encode() + b"\n"
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, body in [(MANIFEST, document), *((n, files[n]) for n in digests)]:
            member = tarfile.TarInfo(name)
            member.size = len(body)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(body))
    return gzip.compress(plain.getvalue(), mtime=0), manifest


def read(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """An archive's manifest and files; RecordError where they are not those that it names."""
    try:
        with tarfile.open(path, mode="r:gz") as tar:
            files = {m.name: _body(tar, m, path) for m in tar}
    except (OSError, tarfile.TarError, EOFError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecordError(
            f"no archive of runs: {why}",
            where=str(path),
            expected="what scaleproof pack wrote",
            fix=f"scaleproof pack RUN --to {path.name}",
        ) from None
    try:
        manifest = from_doc(Manifest, json.loads(files.pop(MANIFEST)), "manifest")
    except (KeyError, ValueError) as error:
        raise _damaged(path, f"its {MANIFEST} cannot be read: {error}") from None
    if strange := sorted(set(files) ^ set(manifest.files)):
        raise _damaged(
            path, f"{strange[0]} is {'not listed' if strange[0] in files else 'missing'}"
        )
    for run in manifest.runs:
        if f"{run.folder}/record.json" not in files:
            raise _damaged(path, f"its run {run.folder!r} has no record in it")
    for name, body in files.items():
        if hashlib.sha256(body).hexdigest() != manifest.files[name]:
            raise _damaged(path, f"{name} is not what was packed")
    return manifest, files


def unpack(path: Path, results: Path) -> tuple[Manifest, list[Path]]:
    """Write the runs of an archive below ``results``; RecordError if another run is there."""
    manifest, files = read(path)
    targets = {name: results / name for name in files}
    for name, target in targets.items():
        if target.is_file() and target.read_bytes() != files[name]:
            raise RecordError(
                f"{target} is there, and another one than in the archive",
                where=str(path),
                fix=f"scaleproof unpack {path} --to elsewhere",
            )
    for name, target in targets.items():
        put(target, files[name], "--to")
    return manifest, [results / p.folder for p in manifest.runs]


def _body(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    """A regular file with a plain name: nothing of an archive leads out of where it is unpacked."""
    name = PurePosixPath(member.name)
    if not member.isreg() or name.is_absolute() or ".." in name.parts or "\\" in member.name:
        raise _damaged(path, f"{member.name!r} is no file of a record")
    if member.name != MANIFEST and (name.parts[0] != "runs" or len(name.parts) < 4):
        raise _damaged(path, f"{member.name!r} is no file of a run")
    if member.size > LARGEST:
        raise _damaged(path, f"{member.name!r} has {member.size} bytes")
    handle = tar.extractfile(member)
    assert handle is not None
    return handle.read()


def _damaged(path: Path, what: str) -> RecordError:
    return RecordError(
        what,
        where=str(path),
        expected="the archive as it was packed",
        fix="copy it from its source again",
    )
