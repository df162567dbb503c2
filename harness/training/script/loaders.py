"""Observe the batches that torch's DataLoaders hand to a training: their sizes and samplers.

A loader takes the indices of a batch from its sampler long before it hands out the batch. It hands
out batches in the order in which it took their indices.
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
from time import perf_counter
from typing import Any, NamedTuple, cast

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

from harness.launch.wire.messages import LoopState
from harness.record.rank import PART
from harness.training.observe.intake import digest
from harness.training.script.graphs import Graphs, graphs
from harness.training.script.samples import tensors

#: Attributes that are set on a loader's iterator: the sizes of the batches that it has yet to hand
#: out, the loader, the ``OneLoader`` of the loader, and the time in s that it took to make the
#: iterator, until its first batch was handed out.
_SIZES = "scaleproof_sizes"
_LOADER = "scaleproof_loader"
_SEEN = "scaleproof_seen"
_MADE_S = "scaleproof_made_s"
#: The batches of several loaders may form one batch of the training. This is the largest number of
#: loaders in addition to the first.
TOGETHER = 3
#: Number of characters of a data set's entry that are hashed.
ENTRY = 400
#: The address in the default ``repr`` of an object, which differs between processes.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class HandedBatch(NamedTuple):
    """A batch that a loader handed out: the loader's number, and its samples (0: unknown).

    The training waited for it for ``took_s`` seconds. ``first`` states that a pass over the loader
    begins with it.
    """

    loader: int
    size: int
    took_s: float
    first: bool


class Use(Enum):
    """How a batch has been used so far."""

    NONE = auto()
    TRAINED = auto()
    EVALUATED = auto()


@dataclass(slots=True, kw_only=True, eq=False)
class OneLoader:
    """One loader: how it divides its data set, and how its batches have been used so far.

    It holds only weak references, so it does not keep the loader and its data set alive.
    """

    number: int
    loader: weakref.ref[DataLoader[Any]]
    workers: int = 0
    sampler: str = ""
    whole: int = 0
    dataset: weakref.ref[object] | None = None
    batches: int = 0
    passes: int = 0  # number of complete passes
    length: int = 0  # number of batches in the last complete pass
    in_pass: int = 0  # number of batches in the current pass
    size: int = 0  # number of samples in the last batch
    graphs: Graphs | None = None  # graphs of the last batch
    use: Use = Use.NONE  # use of the last batch
    trained: int = 0
    trained_before: int = 0  # ``trained`` at the end of the last complete pass
    evaluated: int = 0
    repeated: bool = False  # whether the sampler has shuffled two complete passes identically
    begun_with: str = ""  # digest of the current pass's first batch
    same_passes: bool = False  # whether two passes in succession began with the same batch

    @property
    def trains(self) -> bool:
        """Return whether at least half of the batches that were used train the model."""
        return self.evaluated <= self.trained

    @property
    def used(self) -> bool:
        """Return whether the training has been observed to use the loader.

        The first batches may belong to an evaluation. At that time the roots are not known.
        """
        return self.trained > 0 and self.trains

    def turn(self, use: Use) -> None:
        """Set the use of the last batch, and count each batch once.

        A batch that is used for training and for evaluation, for example by a teacher model, counts
        as training.
        """
        self.trained += (use is Use.TRAINED) - (self.use is Use.TRAINED)
        self.evaluated += (use is Use.EVALUATED) - (self.use is Use.EVALUATED)
        self.use = use


class Loaders:
    """A watch over all DataLoaders of this process.

    ``handed`` is called with each batch that a loader hands out. The hooks on models call
    ``trained`` or ``evaluated`` if a batch passes through a model. If most batches of a loader are
    only evaluated, the loader is not part of the training.
    """

    def __init__(self) -> None:
        self.handed: Callable[[HandedBatch], None] = lambda batch: None
        self._every: list[OneLoader] = []
        self._known: dict[int, OneLoader] = {}  # by id of the loader, which may have been deleted
        self._out: list[OneLoader] = []  # loaders that have handed out a batch, the latest last
        # the loader whose batch trains, if several loaders have handed out batches
        self._training: OneLoader | None = None
        self._passes: dict[int, set[int]] = {}
        self.handing = False  # whether a loader is making or handing out a batch
        self._before: dict[str, Any] = {}

    @property
    def workers(self) -> int:
        """Return the number of worker processes of the main loader."""
        return main.workers if (main := self._main()) else 0

    @property
    def sampler(self) -> str:
        """Return how the main loader's DistributedSampler divides samples, or "" without one."""
        return main.sampler if (main := self._main()) else ""

    @property
    def whole(self) -> int:
        """Return the size of the data set if this rank's main loader draws all of it, else 0."""
        return main.whole if (main := self._main()) else 0

    @property
    def stored(self) -> str:
        """Return a digest of what the main loader's data set stores for some of its samples.

        The digest is empty if the data set stores nothing, for example because it generates
        samples.
        """
        main = self._main()
        return _stored(main.dataset()) if main is not None and main.dataset is not None else ""

    @property
    def repeated(self) -> bool:
        """Return whether a sampler of the training shuffled two complete passes identically.

        The script has then not called ``set_epoch`` between them.
        """
        return any(seen.repeated and seen.used for seen in self._every)

    @property
    def same_passes(self) -> bool:
        """Return whether passes over the main loader begin with one batch despite ``set_epoch``."""
        return main.same_passes if (main := self._main()) else False

    @property
    def sizes(self) -> list[int]:
        """Return the number of samples in the last batch of each loader of the training."""
        return [seen.size for seen in self._every if seen.used]

    @property
    def batches(self) -> list[Graphs]:
        """Return the last batch of each loader of the training that hands out graphs."""
        return [seen.graphs for seen in self._every if seen.used and seen.graphs is not None]

    def trains(self, number: int) -> bool:
        """Return whether at least half of the used batches of a loader train the model."""
        return self._every[number].trains

    def _main(self) -> OneLoader | None:
        """Return the loader of the training that has handed out most batches."""
        used = [seen for seen in self._every if seen.used]
        return max(used, key=lambda seen: seen.batches, default=None)

    def position(self) -> LoopState | None:
        """Return the position of the training in its main loader, or None without a loader."""
        main = self._main() or max(self._every, key=lambda seen: seen.batches, default=None)
        if main is None:
            return None
        return LoopState(passes=main.passes, length=main.length, batches=main.in_pass)

    def trained(self) -> None:
        """Handle a forward pass of the training, which uses the latest batch that is still unused.

        Loaders of which no batch was evaluated take precedence.
        """
        if len(self._out) > 1:
            unused = [seen for seen in self._out if seen.use is Use.NONE]
            latest = [seen for seen in unused if not seen.evaluated] or unused or self._out
            self._training = latest[-1]
            self._training.turn(Use.TRAINED)
        elif self._out:
            self._out[0].turn(Use.TRAINED)

    def came(self, rows: int) -> None:
        """Handle the number of rows in a forward pass of the training.

        If the batches of several loaders have this many rows together, all of these batches count
        as trained. A model may have labelled one of them before (FixMatch).
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
        """Handle a forward pass that trains nothing, which evaluates the latest batch."""
        if self._out and self._out[-1].use is Use.NONE:
            self._out[-1].turn(Use.EVALUATED)

    def remove(self) -> None:
        """Remove the hooks from the loaders."""
        for name, function in self._before.items():
            setattr(_BaseDataLoaderIter, name, function)
        self._before = {}

    def install(self) -> None:
        """Install the hooks, which remain until ``remove`` is called or this process ends."""
        kind = cast(Any, _BaseDataLoaderIter)
        make, draw, hand = kind.__init__, kind._next_index, kind.__next__
        self._before = {"__init__": make, "_next_index": draw, "__next__": hand}

        @functools.wraps(make)
        def made(iterator: Any, loader: DataLoader[Any], *args: Any, **more: Any) -> None:
            setattr(iterator, _LOADER, loader)
            setattr(iterator, _SEEN, self._see(loader))
            setattr(iterator, _SIZES, deque())
            begun_s = perf_counter()
            self.handing = True
            try:
                make(iterator, loader, *args, **more)
            finally:
                self.handing = False
            setattr(iterator, _MADE_S, perf_counter() - begun_s)

        @functools.wraps(draw)
        def drawn(iterator: Any) -> Any:
            numbers = draw(iterator)
            if (sizes := getattr(iterator, _SIZES, None)) is not None:
                sizes.append(_count(numbers))
            return numbers

        @functools.wraps(hand)
        def handed(iterator: Any) -> Any:
            seen = getattr(iterator, _SEEN, None)
            if seen is None:  # the iterator's class did not call ``__init__`` of its base class
                return hand(iterator)
            sizes = getattr(iterator, _SIZES)
            self.handing = True
            begun_s = perf_counter()
            try:
                batch = hand(iterator)
            except StopIteration:
                self._passed(seen, getattr(iterator, _LOADER))
                sizes.clear()
                raise
            finally:
                self.handing = False
            made_s = vars(iterator).pop(_MADE_S, None)
            seen.batches += 1
            seen.in_pass = 1 if made_s is not None else seen.in_pass + 1
            seen.size = sizes.popleft() if sizes else 0
            seen.graphs = graphs(batch)
            seen.use = Use.NONE
            if seen.in_pass == 1:
                self._begun(seen, getattr(iterator, _LOADER), batch)
            if not self._out or self._out[-1] is not seen:
                self._out = [*(other for other in self._out if other is not seen), seen]
            took_s = perf_counter() - begun_s + (made_s or 0.0)
            self.handed(HandedBatch(seen.number, seen.size, took_s, made_s is not None))
            return batch

        kind.__init__, kind._next_index, kind.__next__ = made, drawn, handed

    def _see(self, loader: DataLoader[Any]) -> OneLoader:
        """Return the ``OneLoader`` of a loader. Make a new one if the loader is new."""
        seen = self._known.get(id(loader))
        if seen is None or seen.loader() is not loader:
            seen = OneLoader(number=len(self._every), loader=weakref.ref(loader))
            self._every.append(seen)
            self._known[id(loader)] = seen
        seen.whole = _drawn_whole(loader)
        seen.workers = loader.num_workers
        seen.sampler = _shuffles(loader)
        with contextlib.suppress(TypeError):  # a list cannot be referenced weakly
            seen.dataset = weakref.ref(loader.dataset)
        return seen

    def _begun(self, seen: OneLoader, loader: DataLoader[Any], batch: object) -> None:
        """Handle the first batch of a pass over a loader.

        Worker processes that persist have copies of the data set, which ``set_epoch`` of the
        original does not reach.
        """
        first = next(tensors(batch), None)
        if first is None or not hasattr(loader.dataset, "set_epoch"):
            return
        begun_with = digest(iter([first]))
        seen.same_passes |= begun_with == seen.begun_with
        seen.begun_with = begun_with

    def _passed(self, seen: OneLoader, loader: DataLoader[Any]) -> None:
        """Handle the end of a complete pass over a loader."""
        seen.passes += 1
        seen.length = seen.in_pass
        seen.in_pass = 0
        self._out = [other for other in self._out if other is not seen]
        sampler = _sampler(loader)
        trains = seen.trained > seen.trained_before  # False if the pass only collected statistics
        seen.trained_before = seen.trained
        if not trains or not isinstance(sampler, DistributedSampler) or not sampler.shuffle:
            return
        epochs = self._passes.setdefault(id(sampler), set())
        seen.repeated |= sampler.epoch in epochs
        epochs.add(sampler.epoch)


def _count(numbers: object) -> int:
    """Return the number of samples in a batch, or 0 if the data set itself generates samples."""
    if isinstance(numbers, list | tuple):
        return 0 if None in numbers else len(numbers)
    return 0


def _sampler(loader: DataLoader[Any]) -> object:
    """Return the sampler of a loader, or None if the user's batch sampler chooses the samples."""
    batches = loader.batch_sampler
    if type(batches) is BatchSampler:
        return batches.sampler
    return loader.sampler if batches is None else None


def _shuffles(loader: DataLoader[Any]) -> str:
    """Return how a loader's DistributedSampler divides samples, or "" if there is none."""
    sampler = _sampler(loader)
    if not isinstance(sampler, DistributedSampler) or sampler.num_replicas == 1:
        return ""
    order = f"seed {sampler.seed}" if sampler.shuffle else "in order"
    return f"{sampler.num_replicas} replicas, {order}{_part(loader.dataset)}"


def _part(dataset: object) -> str:
    """Describe a ``Subset`` by three of its indices.

    The indices may depend on a seed (``random_split``).
    """
    if not isinstance(dataset, Subset) or not len(dataset.indices):
        return ""
    numbers = dataset.indices
    few = [int(numbers[i]) for i in (0, len(numbers) // 2, len(numbers) - 1)]
    return f"{PART}{few[0]}, .. {few[1]}, .. {few[2]}"


def _drawn_whole(loader: DataLoader[Any]) -> int:
    """Return the size of the data set if this rank alone draws all of it in one pass, else 0."""
    sampler = _sampler(loader)
    if type(sampler) not in (SequentialSampler, RandomSampler):
        return 0
    if getattr(sampler, "replacement", False) or not isinstance(loader.dataset, Sized):
        return 0
    size = len(loader.dataset)
    return size if len(cast(Sized, sampler)) == size else 0


def _stored(dataset: object) -> str:
    """Return a digest of a few entries that a data set stores for its samples (paths, rows, ..).

    Ranks with the same digest use the same data set. Ranks with different digests have separate
    data sets, or separate parts of one. The digest is empty if a user-defined data set raises an
    error when its entries are read.
    """
    entries: list[str] = []
    with contextlib.suppress(Exception):
        entries = list(_entries(dataset))
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()[:16] if entries else ""


def _entries(dataset: object) -> Iterator[str]:
    """Yield a text for some stored entries of a data set, and of data sets inside it.

    This reads attributes of the data set and not its samples, because reading a sample may draw
    random numbers.
    """
    size = len(cast(Sized, dataset))
    for name, kept in sorted(vars(dataset).items()):
        for part in kept if isinstance(kept, tuple) and len(kept) != size else (kept,):
            if isinstance(part, Dataset):
                yield from _entries(part)
            elif isinstance(part, Sized) and not isinstance(part, str) and 0 < len(part) == size:
                entries = (cast(Any, part)[i] for i in (0, size // 2, size - 1))
                yield from (f"{name} {_ADDRESS.sub('', repr(entry))}"[:ENTRY] for entry in entries)
