"""Parts that compressors share: the closed form they promise, and error feedback per parameter."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor

from harness.base.documents import Json
from harness.training.context import RankContext

#: A DDP communication hook without its state: a bucket in, the averaged flat gradient out.
Hook: TypeAlias = Callable[[dist.GradBucket], torch.futures.Future[Tensor]]


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Per rank and step: input bytes of each collective, and bytes sent in closed form."""

    payload_bytes: Mapping[str, float]
    sent_bytes: float
    formula: str


def done(tensor: Tensor) -> torch.futures.Future[Tensor]:
    """A finished future: synchronous hooks keep the order of collectives equal on all ranks."""
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(tensor)
    return future


def cast(dtype: torch.dtype) -> tuple[Callable[..., Promise], Callable[..., Hook]]:
    """``promise`` and ``build`` of a compressor that all-reduces in ``dtype``.

    Divide, cast, all-reduce, cast back; overlaps with backward like DDP's own all-reduce.
    """

    def promise(shapes: Sequence[torch.Size], world: int, knobs: Mapping[str, Json]) -> Promise:
        payload = float(sum(shape.numel() for shape in shapes) * dtype.itemsize)
        return Promise(
            payload_bytes={"all_reduce": payload},
            sent_bytes=2 * (world - 1) / world * payload,
            formula=f"2 (N-1)/N {dtype.itemsize} n",
        )

    def build(ctx: RankContext, knobs: Mapping[str, Json]) -> Hook:
        def hook(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
            flat = bucket.buffer()
            small = flat.div_(ctx.world_size).to(dtype)  # ``back`` writes over it anyway
            future = dist.all_reduce(small, async_op=True).get_future()

            def back(f: torch.futures.Future[list[Tensor]]) -> Tensor:
                return flat.copy_(f.value()[0])

            averaged: torch.futures.Future[Tensor] = future.then(back)
            return averaged

        return hook

    return promise, build


def all_gather(message: Tensor, world: int) -> Tensor:
    """Every rank's message, shape (world, *message.shape)."""
    gathered = message.new_empty((world, *message.shape))
    # Its older name, all_gather_into_tensor, is deprecated from torch 2.13 on.
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(gathered.flatten(0, 1) if message.dim() > 1 else gathered.flatten(), message)
    return gathered


def state_of(hook: object, names: Mapping[Tensor, str]) -> dict[str, Any]:
    """The state that a hook keeps from step to step: tensors by parameter, generators, its
    ``step``.
    """
    state: dict[str, Any] = {}
    for name, value in vars(hook).items():
        if isinstance(value, ErrorFeedback):
            state[name] = state_of(value, names)
        elif isinstance(value, torch.Generator):
            state[name] = value.get_state()
        elif isinstance(value, dict):
            kept = {names.get(key, key): entry for key, entry in value.items()}
            state[name] = {key: entry for key, entry in kept.items() if isinstance(entry, Tensor)}
        elif name == "step":
            state[name] = value
        elif name == "inner" or hasattr(value, "generator"):
            state[name] = state_of(value, names)
    return state


def restore(hook: object, state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> None:
    """The inverse of ``state_of``, into a fresh hook."""
    for name, value in state.items():
        current = getattr(hook, name)
        if isinstance(current, torch.Generator):
            current.set_state(value)
        elif isinstance(current, dict):
            current |= {parameters.get(key, key): entry for key, entry in value.items()}
        elif isinstance(value, dict):
            restore(current, value, parameters)
        else:
            setattr(hook, name, value)


class Late:
    """A hook that all-reduces whole gradients until step ``start``, and then does as ``inner``."""

    def __init__(self, inner: Hook, start: int, world_size: int) -> None:
        self.inner = inner
        self.start = start
        self.world_size = world_size
        self.step = 0

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        whole = self.step < self.start
        self.step += bucket.is_last()
        if not whole:
            return self.inner(bucket)
        flat = bucket.buffer().div_(self.world_size)
        reduced = dist.all_reduce(flat, async_op=True).get_future()
        heard = getattr(self.inner, "heard", None)  # of whole gradients, by those that need them
        parameters = bucket.parameters()

        def mean(f: torch.futures.Future[list[Tensor]]) -> Tensor:
            if heard is not None:
                heard(parameters, f.value()[0])
            return f.value()[0]

        first: torch.futures.Future[Tensor] = reduced.then(mean)
        return first


class ErrorFeedback:
    """The gradient that was not sent, per parameter (DDP rebuilds buckets after the first step)."""

    def __init__(self) -> None:
        self.owed: dict[Tensor, Tensor] = {}

    def add(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """The gradient plus what is still owed, flat; a new tensor."""
        owed = self.owed.get(parameter)
        flat = gradient.flatten()
        return flat.clone() if owed is None else flat + owed

    def take(self, parameter: Tensor, gradient: Tensor) -> Tensor:
        """Hands out the sum, in the memory of what was owed: whoever takes it says what is owed
        next.
        """
        owed = self.owed.get(parameter)
        return gradient.flatten().clone() if owed is None else owed.add_(gradient.flatten())

    def keep(self, parameter: Tensor, wanted: Tensor, sent: Tensor) -> None:
        """Remember the difference for the next step."""
        self.owed[parameter] = wanted - sent

    def owe(self, parameter: Tensor, difference: Tensor) -> None:
        """Remember this for the next step."""
        self.owed[parameter] = difference
