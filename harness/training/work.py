"""The work of a step, operator by operator, counted on tensors without data.

    forward and backward on fake tensors -> operators -> products, attention, and bytes moved else

An operator of an eager model reads and writes memory. Between two products, compiled blocks read
and write only what comes from outside or is used outside.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from harness.cases import CaseSpec, Compiled, Optimizer, Precision
from harness.record import Product, Work
from harness.training.context import CAST, Loaded, build_model, make_batch, parts
from harness.training.kept import FAKE
from harness.training.tuning.tuned import untuned

#: FLOPs of attention's backward over those of its forward, which a kernel computes again: five
#: products against two (Dao, FlashAttention-2, 2023, section 4.1).
BACKWARD = 2.5


@dataclass(frozen=True)
class _Operator:
    """One call: its FLOPs and their dtype, and bytes by the storage that they lie in."""

    kind: str
    flops: float
    dtype: str
    reads: Mapping[int, int]
    writes: Mapping[int, int]
    fused: bool

    @property
    def moved_bytes(self) -> int:
        return sum(self.reads.values()) + sum(self.writes.values())


class _Watch(TorchDispatchMode):
    """Notes every operator that computes something. Tensors are held, so that no id comes twice."""

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
            return result  # a view
        flops = flops_of(func, args, kwargs or {}, result)
        kind = "" if not flops else "attention" if "attention" in func.name() else "product"
        dtype = str(made[0].dtype).removeprefix("torch.")
        self.operators.append(_Operator(kind, flops, dtype, reads, writes, self.fused))
        return result


def work(loaded: Loaded, case: CaseSpec, samples: int) -> Work:
    """A step of ``accumulate`` times so many samples on one rank, as if it had the whole model.

    As ``kept``, to be called in a process that trains nothing.
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
    """FLOPs of a sample that backward computes a second time, since forward has not kept them.

    Counted as torch runs it: a block is computed again until all that backward needs is there. As
    ``work``, to be called in a process that trains nothing.
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
    """Counts what a backward pass computes with gradients: forward passes, once more."""

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
    """Bytes of all that is neither a product nor attention."""
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
    """The operators that one kernel may do: those between two products, all of compiled blocks or
    none.
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
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _bytes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Bytes by storage; of an expanded tensor only what is there."""
    return {
        tensor.untyped_storage()._cdata: min(tensor.nbytes, tensor.untyped_storage().nbytes())
        for tensor in tensors
    }


def flops_of(func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> float:
    """FLOPs of a matrix product, a convolution or attention; 0 for what memory bounds anyway."""
    if "flash_attention" in func.name():
        backward = func.name().endswith("backward")
        query, key = args[1:3] if backward else args[:2]
        causal = kwargs.get("is_causal", any(args[7:8] if backward else args[4:5]))
        scores = query[..., 0].numel() * key.shape[-2] / (2 if causal else 1)
        return float(4 * scores * query.shape[-1] * (BACKWARD if backward else 1))
    count = flop_registry.get(func._overloadpacket)
    return 0.0 if count is None else float(count(*args, **kwargs, out_val=out))
