"""The work of a step: operators, saved tensors and FLOPs, counted on fake tensors."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.cases import CaseSpec, Compiled, Optimizer, Precision
from harness.record import Product, Work
from harness.training.context import CAST, Loaded, alike, build_model, make_batch, parts
from harness.training.tuning.recompute import PRODUCTS
from harness.training.tuning.tuned import untuned

#: All counts use one mode, because a tensor that a model caches in one count is used in the others.
FAKE = FakeTensorMode()


@dataclass(frozen=True, kw_only=True)
class SavedTensorBytes:
    """The bytes that a step holds in addition to weights, gradients and moments.

    ``per_sample`` is the number of bytes for each sample, and ``constant`` the number of bytes that
    does not depend on the samples. ``blocks`` holds the bytes per sample that each block keeps; the
    last entry includes the loss. ``again`` is the number of bytes per sample that the largest block
    needs while backward recomputes or fetches its activations. It is 0 if all activations stay on
    the device.
    """

    per_sample: int
    constant: int
    blocks: tuple[int, ...]
    again: int


class _Block(NamedTuple):
    """The bytes that a block keeps for backward.

    ``num_bytes`` counts all of them; ``output`` and ``products`` are the bytes of the block's
    output and of its matrix products.
    """

    num_bytes: int
    output: int
    products: int


@dataclass
class _Count:
    """The bytes that the whole model, each of its blocks, and the loss keep."""

    whole: int = 0
    loss: int = 0
    blocks: list[_Block] = field(default_factory=list)

    def deeper(self, more: int) -> _Count:
        """Return the count of a model with ``more`` additional blocks.

        They are copies of the last but one block, because the last block is the head.
        """
        if not more:
            return self
        *before, head = self.blocks
        grown = [*before, *[before[-1]] * more, head]
        return _Count(self.whole + more * before[-1].num_bytes, self.loss, grown)


def kept(loaded: Loaded, case: CaseSpec, more: int = 0) -> SavedTensorBytes:
    """Count the bytes that a step keeps, by a step of one sample and a step of two samples.

    A checkpointed block keeps only its output, and with selective checkpoints also its matrix
    products. Backward recomputes one block at a time, or fetches it from the host. ``more`` is the
    number of blocks to add; each is a copy of the last but one block.

    Call this only in a process that does not train: tensors that a model caches here have no data.
    """
    plain = loaded.at_once(replace(untuned(case), checkpoint=False, compressor=None))
    counts = [_count(loaded, plain, samples).deeper(more) for samples in (1, 2)]
    leaves_out = case.checkpoint or case.offload
    held = [[_held(i, block, case) for i, block in enumerate(count.blocks)] for count in counts]
    most = [
        max(count.loss, *(_again(i, block, case) for i, block in enumerate(count.blocks)))
        for count in counts
    ]
    of_one, of_two = (
        sum(stored) + largest if leaves_out else count.whole
        for stored, largest, count in zip(held, most, counts, strict=True)
    )
    first, second = held
    blocks = [max(0, b - a) for a, b in zip(first, second, strict=True)]
    blocks[-1] += max(0, counts[1].loss - counts[0].loss)
    again = max(0, most[1] - most[0]) if leaves_out else 0
    return SavedTensorBytes(
        per_sample=max(0, of_two - of_one),
        constant=max(0, 2 * of_one - of_two),
        blocks=tuple(blocks),
        again=again,
    )


def _recomputed(place: int, case: CaseSpec) -> bool:
    """Return whether the block at this index is checkpointed."""
    return case.checkpoint and place % case.checkpoint_every == 0


def _held(place: int, block: _Block, case: CaseSpec) -> int:
    """Return the number of bytes of a block that stay on the device from forward to backward."""
    if case.offload:
        return 0
    if not _recomputed(place, case):
        return block.num_bytes
    return block.output + (block.products if case.selective else 0)


def _again(place: int, block: _Block, case: CaseSpec) -> int:
    """Return the number of bytes that a block needs while it is recomputed or fetched."""
    spared = block.products if case.selective and _recomputed(place, case) else 0
    return max(0, block.num_bytes - spared)


class _Products(TorchDispatchMode):
    """A dispatch mode that sums the bytes of the outputs of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in PRODUCTS:
            self.num_bytes += result.numel() * result.element_size()
        return result


def _count(loaded: Loaded, case: CaseSpec, samples: int) -> _Count:
    """Count the bytes of the tensors that autograd saves in a forward pass, without weights."""
    count = _Count()
    by_storage = dict[int, Tensor]()

    def keep(tensor: Tensor) -> Tensor:
        by_storage.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    def held() -> int:
        return sum(
            tensor.untyped_storage().nbytes()
            for key, tensor in by_storage.items()
            if key not in weights
        )

    batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    sample = (batch.inputs, batch.targets)
    usual = torch.get_default_dtype()
    with contextlib.ExitStack() as stack:
        stack.enter_context(FAKE)
        if case.precision is Precision.BF16:
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(torch.bfloat16)
        model = build_model(loaded, replace(case, precision=Precision.FP32), case.seed)
        inputs, targets = (
            torch.zeros(samples, *like.shape[1:], dtype=like.dtype) for like in sample
        )
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        if (dtype := CAST.get(case.precision)) is not None:
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t))
        products = stack.enter_context(_Products())
        x = inputs
        for block in parts(model):
            before = held()
            multiplied = products.num_bytes
            x = block(x)
            output = x.numel() * x.element_size()
            kept_bytes = held() - before
            multiplied = products.num_bytes - multiplied
            count.blocks.append(_Block(kept_bytes, output, multiplied))
        before = held()
        loaded.model.loss(x, targets)
        count.loss = held() - before
        count.whole = held()
    return count


#: Ratio of attention's backward FLOPs to its forward FLOPs. Backward has five matrix products and
#: forward two, because the backward kernel recomputes the scores (Dao, FlashAttention-2, 2023,
#: section 4.1).
BACKWARD = 2.5


@dataclass(frozen=True)
class _Operator:
    """One call of an operator.

    ``reads`` and ``writes`` map storages to the bytes that the operator reads or writes. ``fused``
    states that the operator belongs to a compiled block, where one kernel may compute several
    operators. ``kind`` is ``product``, ``attention``, or empty for any other operator.
    """

    kind: str
    flops: float
    dtype: str
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    fused: bool

    @property
    def moved_bytes(self) -> int:
        """The bytes that the operator reads and writes."""
        return sum(self.reads.values()) + sum(self.writes.values())


class _Watch(TorchDispatchMode):
    """A dispatch mode that records every operator that computes something.

    It keeps references to all outputs, because a new storage could otherwise get the id of a freed
    storage.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: list[_Operator] = []
        self.fused = False
        self._held: list[Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        made = _tensors(result)
        self._held += made
        reads, writes = _bytes(given), _bytes(made)
        if not writes or (not func._schema.is_mutable and writes.keys() <= reads.keys()):
            return result  # views move no bytes
        flops = flops_of(func, args, kwargs or {}, result)
        kind = "" if not flops else "attention" if "attention" in func.name() else "product"
        dtype = str(made[0].dtype).removeprefix("torch.")
        self.operators.append(_Operator(kind, flops, dtype, reads, writes, self.fused))
        return result


def work(loaded: Loaded, case: CaseSpec, samples: int) -> Work:
    """Count the work of a step of ``accumulate`` times ``samples`` samples on one rank.

    The count assumes that the rank holds the whole model. As with ``kept``, call this only in a
    process that does not train.
    """
    watch = _Watch()
    usual = torch.get_default_dtype()
    batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    example = (batch.inputs, batch.targets)
    compiled = case.compiled == Compiled.INDUCTOR
    with contextlib.ExitStack() as stack:
        stack.enter_context(FAKE)
        if case.precision == Precision.BF16:
            stack.callback(torch.set_default_dtype, usual)
            torch.set_default_dtype(torch.bfloat16)
        plain = replace(untuned(case), precision=Precision.FP32)
        model = build_model(loaded, plain, case.seed)
        inputs, targets = (
            torch.zeros(samples, *like.shape[1:], dtype=like.dtype) for like in example
        )
        if (dtype := CAST.get(case.precision)) is not None:
            stack.enter_context(torch.autocast("cpu", dtype=dtype))
        with watch:
            x, watch.fused = inputs, compiled
            for block in parts(model):
                x = block(x)
            watch.fused = False
            if compiled:
                x.register_hook(lambda _: setattr(watch, "fused", True))
            loaded.model.loss(x, targets).backward()
        weights = sum(parameter.nbytes for parameter in model.parameters())
    return _summed(watch.operators, case, samples, weights)


def again_flops(loaded: Loaded, case: CaseSpec) -> float:
    """Count the FLOPs per sample of the forward operators that checkpointing runs again.

    Torch stops recomputing a block when all tensors that backward needs exist. Only the operators
    that ran until then count. As with ``kept``, call this only in a process that does not
    train.
    """
    if not case.checkpoint:
        return 0.0
    batch = make_batch(loaded, case, torch.zeros(1, dtype=torch.int64), torch.device("meta"))
    again = _Again()
    with FAKE, again:
        model = build_model(loaded, replace(untuned(case), precision=Precision.FP32), case.seed)
        inputs, targets = (
            torch.zeros(1, *like.shape[1:], dtype=like.dtype)
            for like in (batch.inputs, batch.targets)
        )
        loaded.model.loss(model(inputs), targets).backward()
    return float(again.flops)


class _Again(TorchDispatchMode):
    """A dispatch mode that counts the FLOPs of recomputed forward passes.

    An operator belongs to a recomputed forward pass if it runs during backward with gradients
    enabled.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() >= 0:
            count = flop_registry.get(func._overloadpacket)
            if count is not None:
                self.flops += count(*args, **(kwargs or {}), out_val=result)
        return result


def _summed(operators: Sequence[_Operator], case: CaseSpec, samples: int, weights: int) -> Work:
    """Return the work of these operators, and of an optimizer step of ``weights`` bytes."""
    counted: Counter[Product] = Counter()
    for operator in operators:
        if operator.kind:
            narrow = operator.kind == "product" and operator.dtype == "float32"
            product = Product(
                kind=operator.kind,
                flops=operator.flops,
                moved_bytes=operator.moved_bytes,
                dtype=case.dtype if narrow and case.tf32 else operator.dtype,
            )
            counted[product] += case.accumulate
    return Work(
        samples=samples * case.accumulate,
        products=tuple(replace(product, count=n) for product, n in counted.items()),
        moved_bytes=case.accumulate * _moved(operators),
        update_bytes=weights * (3 if case.optimizer == Optimizer.SGD else 7),
    )


def _moved(operators: Sequence[_Operator]) -> int:
    """Return the bytes that operators other than matrix products and attention move.

    In a fused group, only inputs from outside the group and outputs that are used later count.
    """
    groups = list(_groups(operators))
    last_read: dict[int, int] = {}
    for place, group in enumerate(groups):
        for operator in group:
            last_read |= dict.fromkeys(operator.reads, place)
    moved = 0
    for place, group in enumerate(groups):
        if group[0].kind:
            continue
        if not group[0].fused:
            moved += sum(operator.moved_bytes for operator in group)
            continue
        inside: set[int] = set()
        outside: dict[int, int] = {}
        written: dict[int, int] = {}
        for operator in group:
            outside |= {key: read for key, read in operator.reads.items() if key not in inside}
            inside |= operator.writes.keys()
            written |= operator.writes
        used = {
            key: value for key, value in written.items() if last_read.get(key, len(groups)) > place
        }
        moved += sum(outside.values()) + sum(used.values())
    return moved


def _groups(operators: Iterable[_Operator]) -> Iterator[list[_Operator]]:
    """Yield groups of consecutive operators that one kernel may compute.

    Each matrix product or attention is a group by itself. The operators between two of these form
    groups, each of which is either entirely in compiled blocks or entirely outside.
    """
    group: list[_Operator] = []
    for operator in operators:
        if group and (operator.kind or group[0].kind or operator.fused != group[0].fused):
            yield group
            group = []
        group.append(operator)
    if group:
        yield group


def _tensors(values: object) -> list[Tensor]:
    """Return all tensors in nested containers."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Return the bytes of these tensors by storage.

    An expanded tensor counts with the bytes of its storage.
    """
    return {
        tensor.untyped_storage()._cdata: min(tensor.nbytes, tensor.untyped_storage().nbytes())
        for tensor in tensors
    }


def flops_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    """Return the FLOPs of a matrix product, a convolution or attention.

    Other operators count as 0, because memory bandwidth limits their speed.
    """
    if "flash_attention" in func.name():
        backward = func.name().endswith("backward")
        query, key = args[1:3] if backward else args[:2]
        causal = kwargs.get("is_causal", any(args[7:8] if backward else args[4:5]))
        scores = query[..., 0].numel() * key.shape[-2] / (2 if causal else 1)
        return float(4 * scores * query.shape[-1] * (BACKWARD if backward else 1))
    count = flop_registry.get(func._overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))


class _Flops(TorchDispatchMode):
    """A dispatch mode that counts FLOPs.

    Torch's ``FlopCounterMode`` also follows modules by hooks, which a backward pass inside of a
    backward pass does not support.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total: float = 0.0
        self.weighted: float = 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if flops := flops_of(func, args, kwargs or {}, result):
            self.total += flops
            self.weighted += flops * _tensors(result)[0].element_size() / 4
        return result


def counted_flops(step: Callable[[], object], *, weighted: bool = False) -> float:
    """Run a step, and return the FLOPs of its matrix products, convolutions and attention.

    If ``weighted``, the FLOPs in a dtype count in proportion to the size of its elements: those in
    fp32 once, and those in bfloat16 half. Compiled functions run uncompiled, because torch compiles
    nothing within a dispatch mode.
    """
    with torch.compiler.set_stance("force_eager"), _Flops() as counter:
        step()
    return float(counter.weighted if weighted else counter.total)


#: Numbers of layers of the two shallow models from which the counts of a deep model are computed.
LESS = 1
MORE = 2
_Counted = TypeVar("_Counted")


def kept_bytes(loaded: Loaded, case: CaseSpec) -> SavedTensorBytes:
    """Return the bytes that a step keeps, as ``kept`` counts them.

    For a deep model of identical layers, a model of ``MORE`` layers is counted, and the bytes of
    the remaining layers are added.
    """
    if not (layers := _deep(loaded, case)):
        return kept(loaded, case)
    return kept(replace(loaded, layers=MORE), case, layers - MORE)


def step_work(loaded: Loaded, case: CaseSpec, samples: int) -> Work:
    """Return the work of a step as ``work`` counts it, but from two shallow models if possible."""
    return _by_depth(loaded, case, partial(work, case=case, samples=samples), _deep_work)


class WorkBySamples:
    """The work of one model for any number of samples, interpolated between two counts.

    Bytes and FLOPs are linear in the number of samples: a constant for the weights plus a part per
    sample. One sample is counted separately, because tensors with a dimension of size 1 have a
    different layout.
    """

    def __init__(self, loaded: Loaded) -> None:
        self._grows = alike(loaded.model)
        self._counted: dict[int, Work] = {}

    def of(self, samples: int, count: Callable[[int], Work]) -> Work:
        """Return the work of ``samples`` samples; call ``count`` if it cannot be interpolated."""
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
    """Return the work of ``samples`` samples by linear interpolation between two counts.

    Return None if the counts have different products, or the result is not a whole number of bytes.
    """
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
    """Return ``count`` of the whole model, computed from two shallow models if possible."""
    return _by_depth(loaded, case, count, _grown)


def _by_depth(
    loaded: Loaded,
    case: CaseSpec,
    count: Callable[[Loaded], _Counted],
    deep: Callable[[_Counted, _Counted, int], _Counted],
) -> _Counted:
    """Return the count of the whole model.

    If its layers are identical, ``deep`` extrapolates it from the counts with ``LESS`` and ``MORE``
    layers.
    """
    if not (layers := _deep(loaded, case)):
        return count(loaded)
    less, more = (count(replace(loaded, layers=n)) for n in (LESS, MORE))
    return deep(less, more, layers - LESS)


def _deep(loaded: Loaded, case: CaseSpec) -> int:
    """Return the number of layers if two shallow models suffice to count this model.

    Return 0 if the model itself must be counted.
    """
    layers = int(loaded.size(case).get("layers", 0))
    unlike = case.checkpoint and case.checkpoint_every > 1
    return layers if alike(loaded.model) and layers > MORE and not unlike else 0


def _grown(less: float, more: float, times: int) -> float:
    """Return ``less`` plus ``times`` times the difference between ``more`` and ``less``."""
    return less + (more - less) * times


def _deep_work(less: Work, more: Work, times: int) -> Work:
    """Return ``less`` plus ``times`` times the difference between ``more`` and ``less``."""
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
