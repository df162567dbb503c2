"""The batches that torch's loaders hand to a training: how many samples each has, and who chose
them.

A loader takes the numbers of a batch's samples from its sampler long before it hands out the batch,
and hands out batches in that order.
"""

import contextlib
import functools
import hashlib
import re
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sized
from enum import Enum, auto
from typing import Any, cast

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

#: Where an iterator keeps the sizes of batches that it has not handed out yet, and its loader.
_SIZES = "scaleproof_sizes"
_LOADER = "scaleproof_loader"
#: Characters of an entry that tell it from others.
ENTRY = 400
#: Where an object of no words lies says nothing of what it is.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Use(Enum):
    """The use of a batch so far."""

    NONE = auto()
    TRAINED = auto()
    EVALUATED = auto()


class Loaders:
    """Watches all loaders of this process; ``handed`` is told a loader's number and how many
    samples a batch is of.

    Who passes a batch through a model says so: ``trained`` or ``evaluated``. A loader most of whose
    batches are only evaluated says nothing of the training.
    """

    def __init__(self, handed: Callable[[int, int], None]) -> None:
        self._handed = handed
        self._last: dict[int, int] = {}
        self._batches: Counter[int] = Counter()
        self._used: dict[int, Use] = {}  # the batches that are out, the latest last
        self._trained: Counter[int] = Counter()
        self._evaluated: Counter[int] = Counter()
        self._whole: dict[int, int] = {}
        self._workers: dict[int, int] = {}
        self._samplers: dict[int, str] = {}
        self._datasets: dict[int, weakref.ref[object]] = {}  # they live as long as without us
        self._passes: dict[int, set[int]] = {}
        self._repeated = set[int]()
        self.handing = False  # a batch is being made, in this process or another
        self._before: dict[str, Any] = {}

    @property
    def workers(self) -> int:
        """Processes of the main loader."""
        return self._workers.get(self._main(), 0)

    @property
    def sampler(self) -> str:
        """How the main loader's DistributedSampler shares out samples; empty if it has none."""
        return self._samplers.get(self._main(), "")

    @property
    def whole(self) -> int:
        """Samples of the data set if this rank's main loader draws all of them, else 0."""
        return self._whole.get(self._main(), 0)

    @property
    def stored(self) -> str:
        """A digest of what the main loader's data set stores for some of its samples; empty where
        it stores nothing, as one that makes them up.
        """
        known = self._datasets.get(self._main())
        return _stored(known()) if known is not None else ""

    @property
    def repeated(self) -> bool:
        """Whether a sampler that trains has shuffled two whole passes alike: it was not told which
        one it is.
        """
        return any(map(self.trains, self._repeated))

    @property
    def sizes(self) -> list[int]:
        """Samples of the batch that each loader which was seen to train has handed out last."""
        return [size for number, size in self._last.items() if self._is_used(number)]

    def trains(self, number: int) -> bool:
        """Whether as many of a loader's batches train as are only evaluated."""
        return self._evaluated[number] <= self._trained[number]

    def _is_used(self, number: int) -> bool:
        """Whether the training was seen to use its batches: the first ones may be an evaluation's,
        before anybody knows what the training calls.
        """
        return self._trained[number] > 0 and self.trains(number)

    def _main(self) -> int:
        """The number of the loader with most batches of the training; 0 where there is none."""
        batches = {number: n for number, n in self._batches.items() if self._is_used(number)}
        return max(batches, key=batches.__getitem__, default=0)

    def trained(self) -> None:
        """A training's forward pass: of the latest batch that nobody has used yet, of a loader of
        which nothing was evaluated if there is one.
        """
        unused = [number for number, use in self._used.items() if use is Use.NONE]
        latest = sorted(unused, key=lambda number: not self._evaluated[number]) or list(self._used)
        if latest:
            self._use(latest[-1], Use.TRAINED)

    def evaluated(self) -> None:
        """A forward pass that trains nothing: of the latest batch."""
        number = next(reversed(self._used), 0)
        if self._used.get(number) is Use.NONE:
            self._use(number, Use.EVALUATED)

    def _use(self, number: int, use: Use) -> None:
        """A batch counts once: an evaluation of one that trains, too, as a teacher's, is none."""
        counts = {Use.TRAINED: self._trained, Use.EVALUATED: self._evaluated}
        if self._used[number] is not Use.NONE:
            counts[self._used[number]][number] -= 1
        counts[use][number] += 1
        self._used[number] = use

    def remove(self) -> None:
        """Loaders are as they were."""
        for name, function in self._before.items():
            setattr(_BaseDataLoaderIter, name, function)
        self._before = {}

    def install(self) -> None:
        """Until ``remove``, or the end of this process."""
        kind = cast(Any, _BaseDataLoaderIter)
        make, draw, hand = kind.__init__, kind._next_index, kind.__next__
        self._before = {"__init__": make, "_next_index": draw, "__next__": hand}

        @functools.wraps(make)
        def made(iterator: Any, loader: DataLoader[Any], *args: Any, **more: Any) -> None:
            setattr(iterator, _LOADER, loader)
            setattr(iterator, _SIZES, deque())
            self._whole[id(loader)] = _drawn_whole(loader)
            self._workers[id(loader)] = loader.num_workers
            self._samplers[id(loader)] = _shuffles(loader)
            with contextlib.suppress(TypeError):  # a list
                self._datasets[id(loader)] = weakref.ref(loader.dataset)
            make(iterator, loader, *args, **more)

        @functools.wraps(draw)
        def drawn(iterator: Any) -> Any:
            numbers = draw(iterator)
            if (sizes := getattr(iterator, _SIZES, None)) is not None:
                sizes.append(_count(numbers))
            return numbers

        @functools.wraps(hand)
        def handed(iterator: Any) -> Any:
            loader = getattr(iterator, _LOADER, None)
            if loader is None:  # one that never called what it inherits
                return hand(iterator)
            sizes = getattr(iterator, _SIZES)
            self.handing = True
            try:
                batch = hand(iterator)
            except StopIteration:
                self._passed(loader)
                sizes.clear()
                raise
            finally:
                self.handing = False
            size = sizes.popleft() if sizes else 0
            number = id(loader)
            self._batches[number] += 1
            self._last[number] = size
            self._used.pop(number, None)
            self._used[number] = Use.NONE
            self._handed(number, size)
            return batch

        kind.__init__, kind._next_index, kind.__next__ = made, drawn, handed

    def _passed(self, loader: DataLoader[Any]) -> None:
        """A loader has come to its end."""
        self._used.pop(id(loader), None)
        sampler = _sampler(loader)
        if not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
            return
        epochs = self._passes.setdefault(id(sampler), set())
        if sampler.epoch in epochs:
            self._repeated.add(id(loader))
        epochs.add(sampler.epoch)


def _count(numbers: object) -> int:
    """Samples of a batch by their numbers; 0 where a data set that has none makes them."""
    if isinstance(numbers, list | tuple):
        return 0 if None in numbers else len(numbers)
    return 0


def _sampler(loader: DataLoader[Any]) -> object:
    """Who chooses the samples of a loader; None where it is not torch's own batches that do."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler:
        return batches.sampler
    return loader.sampler if batches is None else None


def _shuffles(loader: DataLoader[Any]) -> str:
    """How a loader's DistributedSampler shares out samples; empty where there is none."""
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas == 1:
        return ""
    order = f"seed {sampler.seed}" if sampler.shuffle else "in order"
    return f"{sampler.num_replicas} replicas, {order}"


def _drawn_whole(loader: DataLoader[Any]) -> int:
    """Samples of the data set if one pass of this rank alone is all of it; else 0."""
    sampler = _sampler(loader)
    if type(sampler) not in (SequentialSampler, RandomSampler):
        return 0
    if getattr(sampler, "replacement", False) or not isinstance(loader.dataset, Sized):
        return 0
    size = len(loader.dataset)
    return size if len(cast(Sized, sampler)) == size else 0


def _stored(dataset: object) -> str:
    """A digest of a few of the entries that a data set has for its samples: paths, rows, numbers.

    Ranks that store the same share one data set; others have each their own, as parts of it are.
    Empty also for a user's own kind that cannot be asked.
    """
    entries: list[str] = []
    with contextlib.suppress(Exception):
        entries = list(_entries(dataset))
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:16] if entries else ""


def _entries(dataset: object) -> Iterator[str]:
    """A data set inside of another is asked for what it stores, not for samples: it may draw."""
    size = len(cast(Sized, dataset))
    for name, kept in sorted(vars(dataset).items()):
        for part in kept if isinstance(kept, tuple) and len(kept) != size else (kept,):
            if isinstance(part, Dataset):
                yield from _entries(part)
            elif isinstance(part, Sized) and not isinstance(part, str) and 0 < len(part) == size:
                entries = (cast(Any, part)[i] for i in (0, size // 2, size - 1))
                yield from (f"{name} {_ADDRESS.sub('', repr(entry))}"[:ENTRY] for entry in entries)
