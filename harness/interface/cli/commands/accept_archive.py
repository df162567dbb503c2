"""The commands ``accept pack`` and ``accept unpack``: runs as one archive file."""

import argparse
import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from harness.analysis.verify import verify
from harness.base import files
from harness.base.documents import to_doc
from harness.base.errors import RecordError
from harness.base.formatting import si
from harness.interface.cli.answer import Answer, Asked
from harness.interface.options import usual_results
from harness.interface.report import text
from harness.record import RunRecord, archive, chain, redaction
from harness.record.archive import Packed
from harness.record.store import load

HELP = {
    "accept pack": "pack runs into one archive with a digest of every file",
    "accept unpack": "unpack the runs of an archive, and check that nothing was changed",
}
EXAMPLES = {
    "accept pack": (
        "accept pack RUN_A RUN_B --to acceptance.tar.gz",
        "accept pack RUN --to public.tar.gz --redact --redact-also 'ACME Corp'",
    ),
    "accept unpack": (
        "accept unpack acceptance.tar.gz",
        "accept unpack acceptance.tar.gz --to elsewhere",
    ),
}


#: Commands that need not verify a record, and why.
UNVOUCHED = {
    "accept pack": "it copies a record and its chain unchanged, so the copy can be verified",
    "accept unpack": "it unpacks a record unchanged, and prints the command that verifies it",
}


class Archive(TypedDict):
    archive: str
    sha256: str
    runs: Sequence[Packed]
    files: Mapping[str, str]


class Unpacked(TypedDict):
    folders: Sequence[str]
    runs: Sequence[Packed]
    files: Mapping[str, str]


#: The documents that each command prints with ``--json``.
ANSWERS: Mapping[str, tuple[Any, ...]] = {
    "accept pack": (Archive,),
    "accept unpack": (Unpacked,),
}


def add_to(sub: argparse.ArgumentParser, command: str) -> None:
    if command == "accept unpack":
        sub.add_argument("archive", type=Path)
        sub.add_argument(
            "--to",
            type=Path,
            default=usual_results(),
            metavar="DIR",
            help="the results folder that receives the runs (default: results)",
        )
        return
    sub.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    sub.add_argument("--to", type=Path, required=True, metavar="FILE", help="the file to write")
    sub.add_argument(
        "--no-traces", action="store_true", help="leave out the traces of profiled launches"
    )
    sub.add_argument(
        "--redact",
        action="store_true",
        help="remove names of hosts and users, addresses, paths and traces; verify still passes",
    )
    sub.add_argument(
        "--redact-also",
        action="append",
        default=[],
        metavar="TEXT",
        help="also remove this text",
    )


def act(asked: Asked) -> Answer:
    return _unpack(asked) if asked.command == "accept unpack" else _pack(asked)


def _pack(asked: Asked) -> Answer:
    args = asked.options
    redacted = args.redact or bool(args.redact_also)
    packed = []
    for path in args.runs:
        run = load(path)
        folder = path if path.is_dir() else path.parent
        if redacted:
            packed.append(_redacted(run, folder, tuple(args.redact_also)))
        else:
            held = Packed(run=run.run, folder=archive.of_run(run), head=run.head)
            packed.append((held, archive.files_of(folder, traces=not args.no_traces)))
    body, manifest = archive.write(packed)
    files.put(args.to, body, "--to")
    digest = hashlib.sha256(body).hexdigest()
    lines = [
        f" {args.to}: {len(manifest.runs)} run{'s' if len(manifest.runs) > 1 else ''},"
        f" {len(manifest.files)} files, {si(float(len(body)), 'B')}",
        f" sha256 {digest}",
    ]
    if redacted:
        lines += text.wrap(
            " names of hosts and users, addresses, paths, traces and logs were removed; check the"
            " archive before you publish it: scaleproof accept unpack and report",
            text.columns(),
            1,
        )
    document = {"archive": str(args.to), "sha256": digest, **to_doc(manifest)}
    return Answer(document=document, lines=lines)


def _redacted(
    run: RunRecord, folder: Path, more: tuple[str, ...]
) -> tuple[Packed, dict[str, bytes]]:
    """Return a run without names, and its files.

    Raise RecordError if the result does not verify.
    """
    clean, links = redaction.redact(run, chain.read(folder), more)
    body = redaction.files(clean, links, archive.files_of(folder, traces=False))
    with tempfile.TemporaryDirectory() as name:
        for path, content in body.items():
            target = Path(name) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        wrong = verify(load(Path(name)), Path(name)).differences
    if wrong:
        raise RecordError(
            f"the redacted run does not verify: {wrong[0]}",
            where=str(folder),
            expected="a run that verifies",
            fix=f"scaleproof verify {folder}",
        )
    packed = Packed(
        run=clean.run,
        folder=archive.of_run(clean),
        head=clean.head,
        redacted_from=run.head or "unchained",
    )
    return packed, body


def _unpack(asked: Asked) -> Answer:
    args = asked.options
    manifest, folders = archive.unpack(args.archive, args.to)
    lines = [f" {len(manifest.files)} files, all unchanged since they were packed"]
    for packed, folder in zip(manifest.runs, folders, strict=True):
        shown = text.shown(folder)
        if packed.redacted_from:
            lines.append(f" {packed.run}: redacted, from the chain {packed.redacted_from[:16]}")
        lines += [f" verify  scaleproof verify {shown}", f" report  scaleproof report {shown}"]
    document = {"folders": [str(path) for path in folders], **to_doc(manifest)}
    return Answer(document=document, lines=lines)
