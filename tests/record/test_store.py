"""A saved record is read back unchanged, and anything else raises one clear error."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest

from harness.analysis.verify import verify
from harness.base import packs
from harness.base.errors import RecordError
from harness.record import SCHEMA, Purpose, RunRecord
from harness.record.store import load, save
from harness.record.upgrade import upgrade
from tests.editing import change


def test_load_is_the_inverse_of_save(sample_run: RunRecord, tmp_path: Path) -> None:
    save(sample_run, tmp_path)
    assert load(tmp_path) == sample_run
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"], (
        "the record contains its digest, so no second file is written"
    )


def test_an_edited_record_is_refused(copy: Path) -> None:
    text = (copy / "record.json").read_text()
    (copy / "record.json").write_text(re.sub(r'"consumed": [1-9]', '"consumed": 9', text, count=1))
    with pytest.raises(RecordError, match="changed after it was written"):
        load(copy)


def test_newer_and_malformed_records_are_refused(copy: Path) -> None:
    change(copy, lambda doc: doc.update(schema=SCHEMA + 1))
    with pytest.raises(RecordError, match="newer than this program"):
        load(copy)
    with pytest.raises(ValueError, match="no schema number"):
        upgrade({"hello": 1}, SCHEMA)
    change(copy, lambda doc: doc.update(schema=5, surprise=1))
    with pytest.raises(RecordError, match="unknown field 'surprise'"):
        load(copy)


def test_a_folder_without_a_record_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no record.json here"):
        load(tmp_path)


def test_samples_packed_into_one_file_verify(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed samples verify like single files; a changed bit or a missing pack is found."""
    run = load(copy)
    monkeypatch.setattr(packs, "MANY", 0)
    for launch in run.launches:
        if launch.usable and launch.purpose is not Purpose.GATE:
            packs.pack(copy / "launches" / launch.launch, [r.rank for r in launch.ranks])
    packed = sorted(copy.glob("launches/*/ranks.zip"))
    assert packed and not list(copy.glob("launches/*/*.npz"))
    assert not verify(run, copy).differences
    body = bytearray(packed[0].read_bytes())
    body[60] ^= 1
    packed[0].write_bytes(bytes(body))
    assert verify(run, copy).differences
    packed[0].unlink()
    assert any("missing" in difference for difference in verify(run, copy).differences)


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_are_read_as_numpy_reads_them(compressed: bool) -> None:
    """Samples have a separate reader, because numpy allocates whatever size a header claims."""
    given = {
        "step_s": np.linspace(0, 1, 7),
        "empty": np.zeros((0, 3), np.int32),
        "one": np.float32(2.5),
        "flags": np.array([True, False]),
        "by_columns": np.asfortranarray(np.arange(6, dtype=">i8").reshape(2, 3)),
        "names": np.array(["a", "bcd"]),
    }
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **given)  # type: ignore[arg-type]
    read = packs.arrays(file.getvalue(), 1 << 20)
    with np.load(io.BytesIO(file.getvalue())) as theirs:
        assert read.keys() == set(theirs.files)
        for name, array in read.items():
            assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
            assert np.array_equal(array, theirs[name]) and array.flags.writeable
    objects = io.BytesIO()
    np.savez(objects, odd=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match="arrays of Python objects are not allowed"):
        packs.arrays(objects.getvalue(), 1 << 20)


def test_a_flipped_bit_in_a_file_of_arrays_raises_or_changes_nothing() -> None:
    """A flipped bit raises ValueError or has no effect, because some bytes, such as timestamps, are
    not read.
    """
    values = np.arange(5)
    file = io.BytesIO()
    np.savez_compressed(file, values=values)
    raw = file.getvalue()
    refused = 0
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1 << (place % 8)
        try:
            read = packs.arrays(bytes(changed), 1 << 20)
        except ValueError:
            refused += 1
            continue
        assert all(np.array_equal(array, values) for array in read.values())
    assert refused > len(raw) / 2
    for end in range(len(raw)):
        with pytest.raises(ValueError):
            packs.arrays(raw[:end], 1 << 20)
    with pytest.raises(ValueError, match="exceed the limit"):
        packs.arrays(raw, len(raw))
