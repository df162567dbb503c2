"""The batches that torch's loaders hand to a training: how many samples each has, and who chose
them.

A loader takes the numbers of a batch's samples from its sampler long before it hands out the batch,
and hands out batches in that order.
"""

import contextlib
import functools
import hashlib
import itertools
import re
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, cast

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from harness.record.rank import PART
from harness.training.script.graphs import Graphs, graphs

#: Where an iterator keeps the sizes of batches that it has not handed out yet, its loader, and what
#: is known of that.
_SIZES = "scaleproof_sizes"
_LOADER = "scaleproof_loader"
_SEEN = "scaleproof_seen"
#: So many loaders' batches are one batch of a training, at most, beside the first one's.
TOGETHER = 3
#: Characters of an entry that tell it from others.
ENTRY = 400
#: Where an object of no words lies says nothing of what it is.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class Use(Enum):
    """The use of a batch so far."""

    NONE = auto()
    TRAINED = auto()
    EVALUATED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class OneLoader:
    """One loader: how it shares out its data set, and what became of its batches so far.

    It lives as long as without us, and so does its data set.
    """

    number: int
    loader: weakref.ref[DataLoader[Any]]
    workers: int = 0
    sampler: str = ""
    whole: int = 0
    dataset: weakref.ref[object] | None = None
    batches: int = 0
    size: int = 0  # samples of the last batch
    graphs: Graphs | None = None  # of the last batch
    use: Use = Use.NONE  # of the last batch
    trained: int = 0
    trained_before: int = 0  # when its last whole pass was over
    evaluated: int = 0
    repeated: bool = False  # its sampler has shuffled two whole passes alike

    @property
    def trains(self) -> bool:
        """Whether as many of its batches train as are only evaluated."""
        return self.evaluated <= self.trained

    @property
    def used(self) -> bool:
        """Whether the training was seen to use it: first batches may be an evaluation's, before
        anybody knows what the training calls.
        """
        return self.trained > 0 and self.trains

    def turn(self, use: Use) -> None:
        """A batch counts once: an evaluation of one that trains, too, as a teacher's, is none."""
        self.trained += (use is Use.TRAINED) - (self.use is Use.TRAINED)
        self.evaluated += (use is Use.EVALUATED) - (self.use is Use.EVALUATED)
        self.use = use


class Loaders:
    """Watches all loaders of this process; ``handed`` is called with a loader's number and how many
    samples a batch is of.

    Who passes a batch through a model says so: ``trained`` or ``evaluated``. A loader most of whose
    batches are only evaluated says nothing of the training.
    """

    def __init__(self) -> None:
        self.handed: Callable[[int, int], None] = lambda number, size: None
        self._every: list[OneLoader] = []
        self._known: dict[int, OneLoader] = {}  # by the id of a loader that may be gone
        self._out: list[OneLoader] = []  # those that have handed out a batch, the latest last
        self._training: OneLoader | None = None  # of several, the one whose batch trains
        self._passes: dict[int, set[int]] = {}
        self.handing = False  # a batch is being made, in this process or another
        self._before: dict[str, Any] = {}

    @property
    def workers(self) -> int:
        """Processes of the main loader."""
        return main.workers if (main := self._main()) else 0

    @property
    def sampler(self) -> str:
        """How the main loader's DistributedSampler shares out samples; empty if it has none."""
        return main.sampler if (main := self._main()) else ""

    @property
    def whole(self) -> int:
        """Samples of the data set if this rank's main loader draws all of them, else 0."""
        return main.whole if (main := self._main()) else 0

    @property
    def stored(self) -> str:
        """A digest of what the main loader's data set stores for some of its samples; empty where
        it stores nothing, as one that makes them up.
        """
        main = self._main()
        return _stored(main.dataset()) if main is not None and main.dataset is not None else ""

    @property
    def repeated(self) -> bool:
        """Whether a sampler that trains has shuffled two whole passes alike: it was not told which
        one it is.
        """
        return any(seen.repeated and seen.used for seen in self._every)

    @property
    def sizes(self) -> list[int]:
        """Samples of the batch that each loader of the training has handed out last."""
        return [seen.size for seen in self._every if seen.used]

    @property
    def batches(self) -> list[Graphs]:
        """Batches of graphs that loaders of the training have handed out last."""
        return [seen.graphs for seen in self._every if seen.used and seen.graphs is not None]

    def trains(self, number: int) -> bool:
        """Whether as many of a loader's batches train as are only evaluated."""
        return self._every[number].trains

    def _main(self) -> OneLoader | None:
        """The loader with most batches of the training."""
        used = [seen for seen in self._every if seen.used]
        return max(used, key=lambda seen: seen.batches, default=None)

    def trained(self) -> None:
        """A training's forward pass: of the latest batch that nobody has used yet, of a loader of
        which nothing was evaluated if there is one.
        """
        if len(self._out) > 1:
            unused = [seen for seen in self._out if seen.use is Use.NONE]
            latest = [seen for seen in unused if not seen.evaluated] or unused or self._out
            self._training = latest[-1]
            self._training.turn(Use.TRAINED)
        elif self._out:
            self._out[0].turn(Use.TRAINED)

    def came(self, rows: int) -> None:
        """So many rows are in the training's forward pass: those of several loaders' batches, if
        these have as many together, also of one that labels were found for (FixMatch).
        """
        training = self._training
        if len(self._out) < 2 or training is None or training.size == rows:
            return
        others = [
            seen for seen in self._out if seen is not training and seen.use is not Use.TRAINED
        ]
        for many in range(1, min(len(others), TOGETHER) + 1):
            for several in itertools.combinations(others, many):
                if training.size + sum(seen.size for seen in several) == rows:
                    for seen in several:
                        seen.turn(Use.TRAINED)
                    return

    def evaluated(self) -> None:
        """A forward pass that trains nothing: of the latest batch."""
        if self._out and self._out[-1].use is Use.NONE:
            self._out[-1].turn(Use.EVALUATED)

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
            setattr(iterator, _SEEN, self._see(loader))
            setattr(iterator, _SIZES, deque())
            make(iterator, loader, *args, **more)

        @functools.wraps(draw)
        def drawn(iterator: Any) -> Any:
            numbers = draw(iterator)
            if (sizes := getattr(iterator, _SIZES, None)) is not None:
                sizes.append(_count(numbers))
            return numbers

        @functools.wraps(hand)
        def handed(iterator: Any) -> Any:
            seen = getattr(iterator, _SEEN, None)
            if seen is None:  # one that never called what it inherits
                return hand(iterator)
            sizes = getattr(iterator, _SIZES)
            self.handing = True
            try:
                batch = hand(iterator)
            except StopIteration:
                self._passed(seen, getattr(iterator, _LOADER))
                sizes.clear()
                raise
            finally:
                self.handing = False
            seen.batches += 1
            seen.size = sizes.popleft() if sizes else 0
            seen.graphs = graphs(batch)
            seen.use = Use.NONE
            if not self._out or self._out[-1] is not seen:
                self._out = [*(other for other in self._out if other is not seen), seen]
            self.handed(seen.number, seen.size)
            return batch

        kind.__init__, kind._next_index, kind.__next__ = made, drawn, handed

    def _see(self, loader: DataLoader[Any]) -> OneLoader:
        """The knowledge of a loader; one that was made anew for this pass is another."""
        seen = self._known.get(id(loader))
        if seen is None or seen.loader() is not loader:
            seen = OneLoader(number=len(self._every), loader=weakref.ref(loader))
            self._every.append(seen)
            self._known[id(loader)] = seen
        seen.whole = _drawn_whole(loader)
        seen.workers = loader.num_workers
        seen.sampler = _shuffles(loader)
        with contextlib.suppress(TypeError):  # a list
            seen.dataset = weakref.ref(loader.dataset)
        return seen

    def _passed(self, seen: OneLoader, loader: DataLoader[Any]) -> None:
        """A loader has come to its end."""
        self._out = [other for other in self._out if other is not seen]
        sampler = _sampler(loader)
        trains = seen.trained > seen.trained_before  # else it is one for statistics
        seen.trained_before = seen.trained
        if not trains or not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
            return
        epochs = self._passes.setdefault(id(sampler), set())
        seen.repeated |= sampler.epoch in epochs
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
    return f"{sampler.num_replicas} replicas, {order}{_part(loader.dataset)}"


def _part(dataset: object) -> str:
    """A part of a data set by a few of its numbers: ``random_split`` draws it, by a seed or not."""
    if not isinstance(dataset, Subset) or not len(dataset.indices):
        return ""
    numbers = dataset.indices
    few = [int(numbers[i]) for i in (0, len(numbers) // 2, len(numbers) - 1)]
    return f"{PART}{few[0]}, .. {few[1]}, .. {few[2]}"


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
