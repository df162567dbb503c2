"""Counts of a deep model from two shallow ones: its blocks are alike, so each adds the same.

    count(1 layer), count(2 layers) -> what a layer adds -> count of all layers
    bytes kept by each block of 2 layers -> those of all layers
    work of 16 samples, work of 8 -> what a sample adds -> work of 4, of 2

A model whose head says ``ALIKE`` is one of ``layers`` equal blocks between its first part and its
last. That of a user's file excuses nothing: it is counted whole, and for each batch.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TypeVar

from harness.cases import CaseSpec
from harness.record import Product, Work
from harness.training.context import Loaded, alike
from harness.training.kept import SavedTensorBytes, kept
from harness.training.work import work

#: Layers of the two models that are counted.
LESS = 1
MORE = 2
_Counted = TypeVar("_Counted")


def kept_bytes(loaded: Loaded, case: CaseSpec) -> SavedTensorBytes:
    """Bytes that a step keeps, as ``kept.kept`` counts them."""
    if not (layers := _deep(loaded, case)):
        return kept(loaded, case)
    return kept(replace(loaded, layers=MORE), case, layers - MORE)


def step_work(loaded: Loaded, case: CaseSpec, samples: int) -> Work:
    """The work of a step, as ``work.work`` counts it."""
    return _by_depth(loaded, case, partial(work, case=case, samples=samples), _deep_work)


class WorkBySamples:
    """The work of one model for any number of samples, counted for two numbers of them.

    A number of bytes or FLOPs is what the weights take and as much for each sample. One sample is
    counted by itself: a dimension of one is laid out otherwise.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._grows = alike(loaded.model)
        self._counted: dict[int, Work] = {}

    def of(self, samples: int, count: Callable[[int], Work]) -> Work:
        """The work of so many samples, which ``count`` counts where it does not follow."""
        if samples not in self._counted:
            known = [n for n in self._counted if n > 1]
            if not (self._grows and samples > 1 and len(known) > 1):
                self._counted[samples] = count(samples)
                return self._counted[samples]
            less, more = sorted(known)[:2]
            between = _between(self._counted[less], self._counted[more], samples)
            self._counted[samples] = count(samples) if between is None else between
        return self._counted[samples]


def _between(less: Work, more: Work, samples: int) -> Work | None:
    """The work of as many samples by the line through two others; None where there is no line."""
    kinds = [[(p.kind, p.dtype, p.count) for p in step.products] for step in (less, more)]
    if kinds[0] != kinds[1]:
        return None
    times = Fraction(samples - less.samples, more.samples - less.samples)

    def at(low: float, high: float) -> Fraction:
        return Fraction(low) + times * (Fraction(high) - Fraction(low))

    pairs = list(zip(less.products, more.products, strict=True))
    flops = [at(a.flops, b.flops) for a, b in pairs]
    moved = [at(a.moved_bytes, b.moved_bytes) for a, b in pairs]
    rest = at(less.moved_bytes, more.moved_bytes)
    if any(num_bytes.denominator > 1 for num_bytes in (*moved, rest)):
        return None
    products = tuple(
        replace(product, flops=float(f), moved_bytes=int(m))
        for product, f, m in zip(less.products, flops, moved, strict=True)
    )
    return replace(less, samples=samples, products=products, moved_bytes=int(rest))


def flops(loaded: Loaded, case: CaseSpec, count: Callable[[Loaded], float]) -> float:
    """The value that ``count`` gives of the whole model."""
    return _by_depth(loaded, case, count, _grown)


def _by_depth(
    loaded: Loaded,
    case: CaseSpec,
    count: Callable[[Loaded], _Counted],
    deep: Callable[[_Counted, _Counted, int], _Counted],
) -> _Counted:
    if not (layers := _deep(loaded, case)):
        return count(loaded)
    less, more = (count(replace(loaded, layers=n)) for n in (LESS, MORE))
    return deep(less, more, layers - LESS)


def _deep(loaded: Loaded, case: CaseSpec) -> int:
    """How many layers a model has that two shallow ones tell all of; 0 of one that is counted."""
    layers = int(loaded.size(case).get("layers", 0))
    unlike = case.checkpoint and case.checkpoint_every > 1
    return layers if alike(loaded.model) and layers > MORE and not unlike else 0


def _grown(less: float, more: float, times: int) -> float:
    return less + (more - less) * times


def _deep_work(less: Work, more: Work, times: int) -> Work:
    products = Counter[Product]()
    for counted, sign in ((less, 1 - times), (more, times)):
        for product in counted.products:
            products[replace(product, count=1)] += sign * product.count
    return Work(
        samples=less.samples,
        products=tuple(replace(product, count=n) for product, n in products.items() if n),
        moved_bytes=less.moved_bytes + (more.moved_bytes - less.moved_bytes) * times,
        update_bytes=less.update_bytes + (more.update_bytes - less.update_bytes) * times,
    )
