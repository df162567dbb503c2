"""Input ``files``: workers of a DataLoader read and decode samples from files on disk."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from harness.training.context import Knobs
from harness.training.data import Batch
from harness.training.feeds import Feed, Source

INPUT = dict(instead=("resident",), more="workers", even=True)
KNOBS = dict(
    workers=2, prefetch=2, persistent=True, pin=False, cold=False, decode_ms=0.0, shard_mb=8.0,
    dataset_mb=256.0,
)  # fmt: skip
RANGES = dict(
    workers=(0, 256), prefetch=(1, 256), decode_ms=(0, 60_000), shard_mb=(0.001, 1e6),
    dataset_mb=(0.001, 1e6),
)  # fmt: skip

#: Number of samples that are generated and written in one operation.
CHUNK = 256
#: The work for one batch: the process id of the worker, its seconds of reading, its seconds of
#: decoding, and the bytes that disks delivered to it.
Work: TypeAlias = tuple[int, float, float, int]


@dataclass
class Stored(Dataset[tuple[Tensor, Tensor, float, float]]):
    """A data set of ``rows`` samples in files of ``per_file`` samples.

    Higher sample numbers repeat these samples. If ``cold``, data is removed from the page cache
    right after it was read, so that disks must deliver all data. ``kinds`` holds the shape, the
    dtype and the number of bytes of a sample's inputs and of its targets. ``decode_s`` is the CPU
    time in s that decoding a sample takes. ``opened`` maps numbers of files to their descriptors.
    """

    folder: Path
    rows: int
    per_file: int
    kinds: Sequence[tuple[torch.Size, torch.dtype, int]]
    decode_s: float
    cold: bool
    opened: dict[int, int] = field(default_factory=dict)

    def __getitem__(self, sample: int) -> tuple[Tensor, Tensor, float, float]:
        """Return a sample's inputs and targets, and the seconds that reading and decoding took."""
        began = time.perf_counter()
        raw = self.read(sample % self.rows)
        read = time.perf_counter()
        inputs, targets = self.decoded(raw)
        return inputs, targets, read - began, time.perf_counter() - read

    def read(self, row: int) -> bytes:
        """Return the bytes of one row; raise ValueError if its file is too short."""
        number, place = divmod(row, self.per_file)
        if number not in self.opened:
            self.opened[number] = os.open(file_of(self.folder, number), os.O_RDONLY)
        size = sum(nbytes for _, _, nbytes in self.kinds)
        raw = os.pread(self.opened[number], size, place * size)
        if self.cold:
            os.posix_fadvise(self.opened[number], 0, 0, os.POSIX_FADV_DONTNEED)
        if len(raw) != size:
            raise ValueError(f"{file_of(self.folder, number)} is too short: row {place} is missing")
        return raw

    def decoded(self, raw: bytes) -> tuple[Tensor, Tensor]:
        """Return the tensors of a row, after using CPU time for ``decode_s`` seconds."""
        until = time.thread_time() + self.decode_s
        while time.thread_time() < until:
            pass
        (input_shape, input_dtype, split), (target_shape, target_dtype, _) = self.kinds
        buffer = bytearray(raw)
        inputs = torch.frombuffer(buffer, dtype=input_dtype, count=input_shape.numel())
        targets = torch.frombuffer(
            buffer, dtype=target_dtype, count=target_shape.numel(), offset=split
        )
        return inputs.view(input_shape), targets.view(target_shape)

    def write(self, source: Source) -> None:
        """Write every ``local_size``-th file, so that the ranks of a node write all files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        files = -(-self.rows // self.per_file)
        for number in range(source.local_rank, files, source.local_size):
            end = min((number + 1) * self.per_file, self.rows)
            with file_of(self.folder, number).open("wb") as out:
                for first in range(number * self.per_file, end, CHUNK):
                    ids = torch.arange(first, min(first + CHUNK, end))
                    for pair in zip(*source.content(ids), strict=True):
                        out.writelines(_bytes(tensor) for tensor in pair)
                out.flush()
                os.fsync(out.fileno())
                os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if not self.cold:
                file_of(self.folder, number).read_bytes()


class Places:
    """A batch sampler that yields the samples of each step of an epoch.

    ``set_steps`` defines the steps of the next epoch.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.first = 0
        self.end = 0

    def set_steps(self, first: int, end: int) -> None:
        """Set the steps of the next epoch."""
        self.first = first
        self.end = end

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.first, self.end):
            yield self.source.ids(step).tolist()

    def __len__(self) -> int:
        return self.end - self.first


class Loading:
    """The batches of one rank, epoch by epoch."""

    def __init__(self, source: Source, stored: Stored, knobs: Knobs) -> None:
        self.source = source
        self.stored = stored
        self.knobs = knobs
        self.places = Places(source)
        workers = int(knobs["workers"])
        self.loader: DataLoader[Any] = DataLoader(
            stored,
            batch_sampler=self.places,
            collate_fn=collated,
            num_workers=workers,
            prefetch_factor=int(knobs["prefetch"]) if workers else None,
            persistent_workers=bool(knobs["persistent"] and workers),
            pin_memory=bool(knobs["pin"]),
            multiprocessing_context="fork" if workers else None,
        )
        self.coming: Iterator[Any] = iter(())
        self.next = -1
        self.work: list[Work] = []

    def __call__(self, step: int) -> Batch:
        """Return the batch of a step.

        If the loader has already handed out this batch, this process reads it again.
        """
        if step < self.next:
            at_once = replace(self.stored, decode_s=0.0)
            return self._batch(step, collated([at_once[i] for i in self.source.ids(step).tolist()]))
        if step != self.next or step % self.source.sampler.steps_per_epoch == 0:
            length = self.source.sampler.steps_per_epoch
            self.places.set_steps(step, min((step // length + 1) * length, self.source.steps))
            self.coming = iter(self.loader)
        self.next = step + 1
        made = next(self.coming)
        self.work.append(made[2:])
        if self.next == self.source.steps:
            self._check()
        return self._batch(step, made)

    def _batch(self, step: int, made: tuple[Any, ...]) -> Batch:
        return self.source.batch(step, self.source.ids(step), made[0], made[1])

    def _check(self) -> None:
        """Raise RuntimeError if the requested workers did not make the batches.

        With ``cold``, raise it also if no disk delivered data.
        """
        asked = int(self.knobs["workers"])
        pids = {pid for pid, *_ in self.work}
        at_work = pids - {os.getpid()}
        if len(at_work) < min(asked, len(self.work)) or (asked and os.getpid() in pids):
            raise RuntimeError(f"only {len(at_work)} of {asked} workers made batches")
        if self.knobs["cold"] and not sum(disk for *_, disk in self.work):
            where = self.stored.folder
            raise RuntimeError(f"cold=True, but no disk delivered data: {where} is in memory")

    @property
    def helpers(self) -> tuple[int, ...]:
        """Return the process ids of the workers."""
        iterator = getattr(self.loader, "_iterator", None) or self.coming
        return tuple(w.pid for w in getattr(iterator, "_workers", ()) if w.pid is not None)

    def took(self) -> dict[str, float]:
        """Return the medians over steps of reading time, decoding time and bytes from disks."""
        names = ("read_s", "decode_s", "disk_bytes")
        columns = list(zip(*self.work, strict=True))[1:]
        return {name: float(median(column)) for name, column in zip(names, columns, strict=True)}


def feed(source: Source, knobs: Knobs) -> Feed:
    """Write the samples of this launch, and return a feed that reads them."""
    first = source.content(torch.zeros(1, dtype=torch.int64))
    kinds = [(tensor.shape[1:], tensor.dtype, tensor[0].nbytes) for tensor in first]
    size = sum(nbytes for _, _, nbytes in kinds)
    stored = Stored(
        folder=source.folder,
        rows=rows_of(source, knobs, size),
        per_file=max(1, int(knobs["shard_mb"] * 2**20 / size)),
        kinds=kinds,
        decode_s=knobs["decode_ms"] / 1e3,
        cold=bool(knobs["cold"]),
    )
    stored.write(source)
    source.meet()
    return Loading(source, stored, knobs)


def plain(source: Source, knobs: Knobs) -> Feed:
    """Return a feed that makes the same batches without files, to compare losses."""
    size = sum(tensor[0].nbytes for tensor in source.content(torch.zeros(1, dtype=torch.int64)))
    rows = rows_of(source, knobs, size)

    def make(step: int) -> Batch:
        ids = source.ids(step)
        return source.batch(step, ids, *source.content(ids % rows))

    return make


def rows_of(source: Source, knobs: Knobs, size: int) -> int:
    """Return the number of samples to store if each has ``size`` bytes.

    These are all samples of the training, or as many as the knob ``dataset_mb`` allows.
    """
    sampler = source.sampler
    epochs = -(-source.steps // sampler.steps_per_epoch) if sampler.fresh else 1
    return max(1, min(epochs * sampler.epoch, int(knobs["dataset_mb"] * 2**20 / size)))


def collated(samples: Sequence[tuple[Tensor, Tensor, float, float]]) -> tuple[Any, ...]:
    """Return the inputs and the targets of a batch, and the fields of ``Work`` for it."""
    inputs, targets, read, decode = zip(*samples, strict=True)
    return (
        torch.stack(inputs),
        torch.stack(targets),
        os.getpid(),
        sum(read),
        sum(decode),
        _disk(),
    )


def file_of(folder: Path, number: int) -> Path:
    return folder / f"shard{number:05d}.bin"


#: Bytes that disks had delivered to this process at the last call of ``_disk``.
_delivered = 0


def _disk() -> int:
    """Return the bytes that disks have delivered to this process since the last call."""
    global _delivered
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/io").read_text(encoding="utf-8").splitlines()
        total = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
        _delivered, before = total, _delivered
        return total - before
    return 0


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
