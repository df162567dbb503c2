"""Counts of a deep model from two shallow ones: its blocks are alike, so each adds the same.

    count(2 layers), count(3 layers) -> what a layer adds -> count of all layers

A model whose head says ``ALIKE`` is one of ``layers`` equal blocks between its first part and its
last. That of a user's file excuses nothing: it is counted whole.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from harness.base.programs import PACKAGE
from harness.cases import CaseSpec
from harness.record import Product, Work
from harness.training.context import Loaded
from harness.training.kept import KeptBytes, kept
from harness.training.work import work

#: Layers of the two models that are counted.
LESS, MORE = 2, 3
_Counted = TypeVar("_Counted")


def kept_bytes(loaded: Loaded, case: CaseSpec) -> KeptBytes:
    """Bytes that a step keeps, as ``kept.kept`` counts them."""
    return _by_depth(loaded, case, partial(kept, case=case), _deep_kept)


def step_work(loaded: Loaded, case: CaseSpec, samples: int) -> Work:
    """What a step computes, as ``work.work`` counts it."""
    return _by_depth(loaded, case, partial(work, case=case, samples=samples), _deep_work)


def flops(loaded: Loaded, case: CaseSpec, count: Callable[[Loaded], float]) -> float:
    """What ``count`` gives of the whole model."""
    return _by_depth(loaded, case, count, _grown)


def _by_depth(
    loaded: Loaded,
    case: CaseSpec,
    count: Callable[[Loaded], _Counted],
    deep: Callable[[_Counted, _Counted, int], _Counted],
) -> _Counted:
    layers = int(loaded.size(case).get("layers", 0))
    shipped = Path(str(loaded.model.__file__)).is_relative_to(PACKAGE)
    alike = shipped and getattr(loaded.model, "ALIKE", False)
    if not alike or layers <= MORE or (case.checkpoint and case.checkpoint_every > 1):
        return count(loaded)
    less, more = (count(replace(loaded, layers=n)) for n in (LESS, MORE))
    return deep(less, more, layers - LESS)


def _grown(less: float, more: float, times: int) -> float:
    return less + (more - less) * times


def _deep_kept(less: KeptBytes, more: KeptBytes, times: int) -> KeptBytes:
    """The last part is the head; each of the blocks before it keeps as much."""
    *before, last = less.blocks
    return KeptBytes(
        per_sample=less.per_sample + (more.per_sample - less.per_sample) * times,
        constant=less.constant + (more.constant - less.constant) * times,
        blocks=(*before, *[before[-1]] * times, last),
        again=more.again,
    )


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
