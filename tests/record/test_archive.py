"""Runs are packed into an archive, checked, unpacked, and redacted."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tracemalloc
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from harness.analysis.judging.verdicts import verdicts
from harness.base.documents import from_doc, to_doc
from harness.base.errors import RecordError
from harness.interface.cli.main import main
from harness.record import Purpose, RunRecord, archive, chain, redaction
from harness.record.archive import MANIFEST
from harness.record.store import load, load_samples


@pytest.fixture
def packed(sample: Path, tmp_path: Path) -> Path:
    file = tmp_path / "runs.tar.gz"
    assert (
        main(
            [
                "accept",
                "pack",
                str(sample),
                str(sample.with_name("ddp-nano-again")),
                "--to",
                str(file),
            ]
        )
        == 0
    )
    return file


def test_an_unpacked_run_equals_the_packed_one(
    packed: Path, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["accept", "unpack", str(packed), "--to", str(tmp_path / "there")]) == 0
    in_order = sorted((tmp_path / "there").glob("runs/*/*"))
    assert len(in_order) == 2
    for folder in in_order:
        assert main(["verify", str(folder)]) == 0
    (same,) = (f for f in in_order if load(f) == load(sample))
    for name in ("record.json", "chain.jsonl"):
        assert (same / name).read_bytes() == (sample / name).read_bytes()
    assert main(["accept", "unpack", str(packed), "--to", str(tmp_path / "there")]) == 0, (
        "unpacking a second time changes nothing"
    )
    (in_order[0] / "record.json").write_text("{}")
    assert main(["accept", "unpack", str(packed), "--to", str(tmp_path / "there")]) != 0
    assert "differs from this run in the archive" in capsys.readouterr().err
    assert (in_order[0] / "record.json").read_text() == "{}", (
        "unpacking overwrites no existing file"
    )


def test_archives_of_the_same_runs_are_identical(
    packed: Path, sample: Path, tmp_path: Path
) -> None:
    again = tmp_path / "again.tar.gz"
    main(
        ["accept", "pack", str(sample), str(sample.with_name("ddp-nano-again")), "--to", str(again)]
    )
    assert again.read_bytes() == packed.read_bytes()


def rewritten(file: Path, edit: Any) -> None:
    """Replace the archive by one whose members ``edit`` has changed."""
    with tarfile.open(file) as tar:
        members = [(m.name, (tar.extractfile(m) or io.BytesIO()).read()) for m in tar]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, body in edit(members):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    file.write_bytes(gzip.compress(out.getvalue()))


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (
            lambda ms: [(n, b + b" " if n.endswith("record.json") else b) for n, b in ms],
            "differs from its digest",
        ),
        (lambda ms: ms[:-1], "missing"),
        (lambda ms: [*ms, ("runs/a/b/record.json", b"x")], "not listed"),
        (lambda ms: [*ms, ("../../evil", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("/etc/evil", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("evil", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("runs/a/b/conftest.py", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("runs/a/../record.json", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("runs/a/b/launches/x/rank0.npz\x1b[2J", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ("runs/a/b/launches/x/y/rank0.npz", b"x")], "not a file of a run"),
        (lambda ms: [*ms, ms[1]], "not an archive of runs: File exists"),
        (lambda ms: [*ms, ("runs/a/b/record.json", bytes(70 << 20))], "200 times its size"),
        (lambda ms: [(MANIFEST, b'{"runs": [], "files": {}}')], "lists no run"),
        (lambda ms: [(MANIFEST, b"[" * 100_000)], "cannot be read"),
        (lambda ms: [m for m in ms if m[0] != MANIFEST], "cannot be read"),
        (
            lambda ms: [
                (n, b.replace(b'"folder": "runs', b'"folder": "../../evil') if n == MANIFEST else b)
                for n, b in ms
            ],
            "has no record.json",
        ),
    ],
)
def test_an_archive_that_was_changed_is_refused_and_writes_nothing(
    packed: Path, tmp_path: Path, edit: Any, message: str
) -> None:
    rewritten(packed, edit)
    with pytest.raises(RecordError, match=message):
        archive.unpack(packed, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_as_an_archive(noise: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "noise"
        file.write_bytes(noise)
        with pytest.raises(RecordError):
            archive.unpack(file, Path(name) / "runs")
        assert not (Path(name) / "runs").exists()


SECRETS = ("gpu-node-07", "alice", "10.0.3.17", "/scratch/acme", "bob@acme.example")


def named(run: RunRecord, folder: Path, to: Path) -> Path:
    """Return a copy of the sample run with host, user and path names, and with a valid chain."""
    doc = to_doc(run)
    doc["machine"]["host"] = "gpu-node-07.cluster.example"
    for x in doc["launches"]:
        for r in x["ranks"]:
            r["host"] = "gpu-node-07.cluster.example"
    doc["settings"]["argv"] = ["scaleproof", "run", "--path", "/home/alice/mine", "--cpus", "2"]
    doc["settings"]["cluster"] = "/scratch/acme/cluster.toml"
    doc["environment"]["MASTER_ADDR"] = "10.0.3.17"
    doc["notes"] = ["gpu-node-07: alice (bob@acme.example) was logged in"]
    old = {
        p["name"]: from_doc(RunRecord, to_doc(run)).plans[i].hash
        for i, p in enumerate(doc["plans"])
    }
    for arm in doc["plans"][0]["arms"]:
        arm["case"]["knobs"] = {"mine.file": "/home/alice/data.bin"}
    text = json.dumps(doc)
    hashes = {old[p.name]: p.hash for p in from_doc(RunRecord, doc).plans}
    for a, b in zip(run.plans[0].arms, from_doc(RunRecord, doc).plans[0].arms, strict=True):
        hashes[a.case.hash] = b.case.hash
        text = text.replace(f'"{a.case.id}"', f'"{b.case.id}"')
    for a, b in hashes.items():
        text = text.replace(f'"{a}"', f'"{b}"')
    edited = from_doc(RunRecord, json.loads(text))
    # The verdicts are judged again because the renamed cases match other rules.
    edited = dataclasses.replace(edited, verdicts=verdicts(edited))
    shutil.copytree(folder, to)
    links: list[chain.Link] = []
    for link in chain.read(folder):
        body = link.body
        if link.kind is chain.Kind.SEALED:
            names = (
                "run",
                "started_at",
                "settings",
                "machine",
                "software",
                "thresholds",
                "admission",
                "environment",
            )
            body = {**body, **{n: to_doc(getattr(edited, n)) for n in names}}
        elif link.kind is chain.Kind.PLAN:
            body = {"hash": edited.plans[0].hash, "plan": to_doc(edited.plans[0])}
        elif link.kind is chain.Kind.ENDED:
            body = {**body, "notes": list(edited.notes)}
        elif link.kind is chain.Kind.LAUNCH:
            body = to_doc(next(x for x in edited.launches if x.launch == body["launch"]))
        else:
            told = json.dumps(body)
            for a, b in hashes.items():
                told = told.replace(f'"{a}"', f'"{b}"')
            body = json.loads(told)
        before = links[-1].hash if links else ""
        links.append(dataclasses.replace(link, before=before, body=body))
    (to / "chain.jsonl").write_text("".join(link.line + "\n" for link in links))
    whole = json.dumps({**to_doc(edited), "head": links[-1].hash})
    (to / "record.json").write_text(whole)
    (to / "record.sha256").write_text(hashlib.sha256(whole.encode()).hexdigest())
    return to


def test_redaction_removes_names_and_verify_still_passes(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    folder, file = named(sample_run, sample, tmp_path / "named"), tmp_path / "public.tar.gz"
    whole = (folder / "record.json").read_text() + (folder / "chain.jsonl").read_text()
    assert all(secret in whole for secret in SECRETS)
    words = ["accept", "pack", str(folder), "--to", str(file), "--redact", "--redact-also", "EPYC"]
    assert main(words) == 0
    manifest, _ = archive.unpack(file, tmp_path / "there")
    for name in manifest.files:
        for secret in (*SECRETS, "EPYC"):
            assert secret.encode() not in (tmp_path / "there" / name).read_bytes(), name
    (there,) = (tmp_path / "there").glob("runs/*/*")
    assert main(["verify", str(there)]) == 0
    assert [v.value for v in load(there).verdicts] == [v.value for v in sample_run.verdicts]
    assert manifest.runs[0].redacted_from and load(there).head == manifest.runs[0].head


@pytest.mark.parametrize(
    "text",
    [
        "fe80::1ff:fe23:4567:890a%eth0",
        "dialed [2001:db8:85a3::8a2e:370:7334]:4000",
        "::1 did not answer",
        "2001:0db8:0000:0000:0000:ff00:0042:8329",
    ],
)
def test_ipv6_addresses_are_redacted(sample_run: RunRecord, text: str) -> None:
    run, _ = redaction.redact(replace(sample_run, notes=[text]), ())
    assert "address" in run.notes[0] and "::" not in run.notes[0] and "2001" not in run.notes[0]


@pytest.mark.parametrize("text", ["10:04:59", "a::b", "std::vector", "1:2", "dp:2,tp:4", "::"])
def test_text_with_colons_that_is_no_address_is_kept(sample_run: RunRecord, text: str) -> None:
    run, _ = redaction.redact(replace(sample_run, notes=[text]), ())
    assert run.notes[0] in (text, "address")


def test_a_path_with_blanks_is_redacted_wherever_it_occurs(sample_run: RunRecord) -> None:
    folder = "/scratch/my secret project/code of mine"
    settings = replace(sample_run.settings, folder=folder)
    notes = [f"{folder}/train.py was edited", "in /scratch/my secret project there is no room"]
    run, _ = redaction.redact(replace(sample_run, settings=settings, notes=notes), ())
    text = json.dumps(to_doc(run))
    assert "secret" not in text and "of mine" not in text and "PATH/train.py" in text


def test_a_path_with_an_ambiguous_end_is_refused(sample_run: RunRecord) -> None:
    run = replace(sample_run, notes=["cp /scratch/my secret/notes.txt failed"])
    with pytest.raises(RecordError, match="end of a path is ambiguous"):
        redaction.redact(run, ())
    redaction.redact(run, (), ("secret/notes.txt",))


def test_secrets_in_the_environment_of_an_older_record_are_redacted(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    """An older version recorded these variables because it did not know them as secrets."""
    links = chain.read(sample)
    secret = {"NCCL_AUTH": "hunter2", "OMP_NUM_THREADS": "2", "TORCH_X": "http://a:hunter2@h/b"}
    first = replace(links[0], body={**links[0].body, "environment": secret})
    run, anew = redaction.redact(replace(sample_run, environment=secret), (first, *links[1:]))
    assert dict(run.environment) == {"OMP_NUM_THREADS": "2"} == anew[0].body["environment"]
    assert "hunter2" not in json.dumps([to_doc(run), [to_doc(x) for x in anew]])


def test_a_change_after_redaction_is_found(
    sample_run: RunRecord, sample: Path, tmp_path: Path
) -> None:
    file = tmp_path / "public.tar.gz"
    main(["accept", "pack", str(sample), "--to", str(file), "--redact"])
    archive.unpack(file, tmp_path)
    (there,) = tmp_path.glob("runs/*/*")
    lines = (there / "chain.jsonl").read_text().splitlines()
    (there / "chain.jsonl").write_text("\n".join([*lines[:5], *lines[6:]]) + "\n")
    assert main(["verify", str(there)]) != 0


def test_a_host_name_that_is_a_keyword_of_the_record_is_refused(
    sample_run: RunRecord, sample: Path
) -> None:
    doc = to_doc(sample_run)
    doc["machine"]["host"] = "timed"
    with pytest.raises(RecordError, match="a word of the record itself"):
        redaction.redact(from_doc(RunRecord, doc), ())


@pytest.mark.parametrize("word", ["efficiency", "met", "PASS"])
def test_a_word_of_verdicts_is_no_name_to_take_out(sample_run: RunRecord, word: str) -> None:
    with pytest.raises(RecordError, match="a word of the record itself"):
        redaction.redact(sample_run, (), (word,))


def test_unpacked_files_are_private_to_their_owner(packed: Path, tmp_path: Path) -> None:
    archive.unpack(packed, tmp_path / "there")
    for path in (tmp_path / "there").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    assert not list((tmp_path / "there").glob(".*"))


def test_a_decompression_bomb_is_refused_within_bounded_memory(tmp_path: Path) -> None:
    """Unpack an archive that claims gigabytes in a process that may allocate 400 MiB."""
    file = tmp_path / "bomb.tar.gz"
    with gzip.open(file, "wb", compresslevel=1) as out:
        info = tarfile.TarInfo("runs/a/b/record.json")
        info.size = 8 << 30
        out.write(info.tobuf())
        for _ in range(100):
            out.write(bytes(1 << 20))
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (400 << 20,) * 2)\n"
        "from pathlib import Path; from harness.record import archive\n"
        "archive.unpack(Path(sys.argv[1]), Path(sys.argv[2]))"
    )
    words = [sys.executable, "-c", program, str(file), str(tmp_path / "there")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "200 times its size" in done.stderr, done.stderr[-500:]
    assert not (tmp_path / "there").exists()


def test_a_long_header_and_a_sparse_file_are_refused(tmp_path: Path) -> None:
    """A header claims a gigabyte of its own, and a sparse file has a negative size."""
    header = tarfile.TarInfo("header")
    header.type = tarfile.XHDTYPE
    header.size = 1 << 30
    sparse = tarfile.TarInfo("runs/a/b/record.json")
    sparse.type = tarfile.GNUTYPE_SPARSE
    member = bytearray(sparse.tobuf(tarfile.GNU_FORMAT))
    member[483:495] = b"\x80" + bytes(3) + (1 << 62).to_bytes(8, "big")
    member[148:156] = b" " * 8
    member[148:156] = f"{sum(member):06o}\0 ".encode()
    for name, start in (("header", header.tobuf()), ("sparse", bytes(member))):
        file = tmp_path / f"{name}.tar.gz"
        with gzip.open(file, "wb", compresslevel=1) as out:
            out.write(start)
            for _ in range(40):
                out.write(bytes(1 << 20))
        tracemalloc.start()
        with pytest.raises(RecordError, match="archive"):
            archive.unpack(file, tmp_path / "there")
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
        tracemalloc.stop()
        assert not (tmp_path / "there").exists()


def test_samples_that_would_fill_the_memory_are_refused(
    sample_run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file unpacks to more zeros than the limit; another's header claims a huge array."""
    monkeypatch.setattr("harness.record.store.MOST_SAMPLES", 16 << 20)
    launch = next(x for x in sample_run.launches if x.purpose is Purpose.TIMED)
    path = tmp_path / "launches" / launch.launch / "rank0.npz"
    path.parent.mkdir(parents=True)
    for bomb in ("zeros", "header"):
        with (
            zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file,
            file.open("loss.npy", "w", force_zip64=True) as out,
        ):
            shape = (1 << 40,) if bomb == "header" else (4 << 20,)
            np.lib.format.write_array_header_1_0(
                out, {"descr": "<f8", "fortran_order": False, "shape": shape}
            )
            for _ in range(8 if bomb == "header" else 32):
                out.write(bytes(1 << 20))
        rank = replace(
            launch.ranks[0], samples_sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        with pytest.raises(RecordError, match="exceed the limit|claims"):
            load_samples(tmp_path, launch.launch, rank)
