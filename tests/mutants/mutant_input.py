"""A loader of samples in files with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from harness.training.context import Knobs
from harness.training.feeds import Feed, Source
from harness.training.inputs import files

INPUT = dict(instead=("resident",), more="workers", even=True)
KNOBS = dict(
    bug="none", workers=2, prefetch=2, persistent=True, pin=False, cold=False, decode_ms=0.0,
    shard_mb=8.0, dataset_mb=256.0,
)  # fmt: skip
plain = files.plain


class Wrong(files.Places):
    """Which samples are read, with the bug."""

    bug = "none"

    def __iter__(self) -> Iterator[list[int]]:
        length = self.source.sampler.steps_per_epoch
        for step in range(self.first, self.end):
            if self.bug == "no_set_epoch":
                step %= length
            shard = 0 if self.bug == "same_shard" else self.source.ctx.shard
            yield self.source.sampler.ids(step, shard).tolist()


class SlowDisk(files.Stored):
    def read(self, row: int) -> bytes:
        time.sleep(0.005)
        return super().read(row)


def feed(source: Source, knobs: Knobs) -> Feed:
    loading: Any = files.feed(source, knobs)
    Wrong.bug = str(knobs["bug"])
    loading.places.__class__ = Wrong
    if knobs["bug"] == "slow_disk":
        loading.stored.__class__ = SlowDisk
    if knobs["bug"] == "no_workers":  # as in a container with too little shared memory
        asked = {**knobs, "workers": 0}
        loading = files.Loading(source, loading.stored, asked)
        loading.knobs = knobs
    return loading  # type: ignore[no-any-return]
