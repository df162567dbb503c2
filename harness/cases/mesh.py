"""Where ranks stand to each other: named dimensions, outermost first, as torch's DeviceMesh.

What a rank sees of the batch and which ranks hold the same parameters follow from it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class Dim(StrEnum):
    """A dimension of a mesh, and what is cut along it."""

    PP = "pp"  # the model's depth, into stages
    DP = "dp"  # samples; parameters are replicated
    FSDP = "fsdp"  # samples, and what is kept of every parameter
    EP = "ep"  # samples, and the experts
    CP = "cp"  # the sequence
    TP = "tp"  # every layer's width
    ROLE = "role"  # the work: some generate what others train on


#: Along these every place trains on samples of its own.
DATA = frozenset({Dim.DP, Dim.FSDP, Dim.EP})
#: Along these sums are cut in another place than on one device, so that they round otherwise.
SPLITS = frozenset({Dim.EP, Dim.CP, Dim.TP})


@dataclass(frozen=True)
class Mesh:
    """Sizes by dimension, in the order of ranks: the last one's places are neighbours."""

    sizes: Mapping[Dim, int]

    @classmethod
    def parse(cls, text: str) -> Mesh:
        """``dp:2,tp:4``; ValueError if that is no mesh. Sizes of 1 are left out."""
        sizes: dict[Dim, int] = {}
        for part in text.split(",") if text else ():
            match = re.fullmatch(r"\s*([a-z]+):([1-9]\d*)\s*", part)
            if match is None or match[1] not in set(Dim) or match[1] in sizes:
                raise ValueError(
                    f"mesh: {part.strip()!r} is not one of {', '.join(Dim)} with a size, each once"
                )
            sizes[Dim(match[1])] = int(match[2])
        return cls({dim: size for dim, size in sizes.items() if size > 1})

    def __str__(self) -> str:
        return ",".join(f"{dim}:{size}" for dim, size in self.sizes.items())

    def size(self, *dims: Dim) -> int:
        """Places along these dimensions together; 1 for those that the mesh has not."""
        return math.prod(self.sizes.get(dim, 1) for dim in dims)

    @property
    def ranks(self) -> int:
        return self.size(*self.sizes)

    @cached_property
    def shards(self) -> int:
        """Parts of a batch that are trained on side by side."""
        return self.size(*(size for size in self.sizes if size in DATA))

    @property
    def uncut(self) -> bool:
        """Whether a rank has all of each parameter that it trains."""
        return self.sizes.keys().isdisjoint({Dim.FSDP, Dim.EP, Dim.TP})

    @property
    def exact(self) -> bool:
        """Whether gradients can be those of one device to the bit: two numbers add up to the same
        bits in any order, more do not.
        """
        return self.shards <= 2 and not self.splits

    @property
    def splits(self) -> bool:
        """Whether layers themselves are cut, and so add in another order than on one device."""
        return not self.sizes.keys().isdisjoint(SPLITS)

    def place(self, rank: int, *dims: Dim) -> int:
        """A rank's place along these dimensions together, in the mesh's order."""
        index, stride = 0, 1
        for dim, size in reversed(list(self.sizes.items())):
            rank, along = divmod(rank, size)
            if dim in dims:
                index = index + along * stride
                stride = stride * size
        return index

    def shard(self, rank: int) -> int:
        """Which part of every batch is this rank's."""
        return self.place(rank, *DATA)

    def at(self, world_size: int) -> Mesh:
        """The mesh of another world: the first dimension of samples (else the first) takes what the
        others leave; these shrink, outermost first, where there are too few ranks.
        """
        free = next((d for d in self.sizes if d in DATA), next(iter(self.sizes), Dim.DP))
        unplaced = world_size
        sizes = dict(self.sizes)
        for dim in reversed([d for d in self.sizes if d is not free]):
            sizes[dim] = math.gcd(sizes[dim], unplaced)
            unplaced //= sizes[dim]
        sizes[free] = unplaced
        return Mesh({dim: size for dim, size in sizes.items() if size > 1})
