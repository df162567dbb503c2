"""Compressors of this project, of torch, of GRACE and of PowerSGD's authors with one interface."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    powerSGD_hook,
    quantization_hooks,
)

from harness.base import programs
from harness.cases import Catalogue
from harness.training.rank.invariants import CodecBucket

#: Settings of each method, the same for all implementations. About 5 % of the elements exceed a
#: threshold of 4.
KNOBS: dict[str, dict[str, Any]] = {
    "topk": dict(rho=0.01),
    "randomk": dict(rho=0.1),
    "threshold": dict(threshold=4.0, rho=0.06),
    "dgc": dict(rho=0.01, momentum=0.9),
    "powersgd": dict(rank=2),
}


class Entrant:
    """One implementation of a method, with its state between steps."""

    def load(self, gradient: Tensor) -> None:
        """Store a gradient where the backward pass would; this is not timed."""
        raise NotImplementedError

    def step(self) -> Tensor:
        """Encode, exchange and decode the gradient; return the mean over ranks as a vector."""
        raise NotImplementedError

    def owed(self) -> Tensor | None:
        """Return the error feedback: what was not sent yet. None if the method has none."""
        return None


class Hooked(Entrant):
    """A communication hook of DDP, from this project or from torch."""

    def __init__(self, shape: tuple[int, int], hook: Callable[..., Any]) -> None:
        self.hook, self.bucket = hook, CodecBucket([nn.Parameter(torch.zeros(shape))])

    def load(self, gradient: Tensor) -> None:
        self.bucket.fill(gradient)

    def step(self) -> Tensor:
        out: Tensor = self.hook(self.bucket).wait()
        return out

    def owed(self) -> Tensor | None:
        """Return the error feedback, including that of sums, which one rank holds for all ranks."""
        feedback = getattr(self.hook, "feedback", None)
        if feedback is None:
            return None
        gradient: Tensor = feedback.owed[self.bucket.parameters()[0]].flatten().clone()
        for total, part in getattr(self.hook, "of_sums", {}).items():
            rows = torch.zeros(total).view(dist.get_world_size(), -1)
            rows[dist.get_rank()] = part[0] * dist.get_world_size()
            gradient += rows.flatten()[: gradient.numel()]
        return gradient


class LowRank(Hooked):
    """PowerSGD of torch with its defaults, except for the number of uncompressed first steps."""

    def __init__(self, shape: tuple[int, int]) -> None:
        self.state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=KNOBS["powersgd"]["rank"], start_powerSGD_iter=2
        )
        super().__init__(shape, lambda bucket: powerSGD_hook.powerSGD_hook(self.state, bucket))

    def owed(self) -> Tensor | None:
        """Return the error feedback, which is zero before compression begins."""
        nothing = torch.zeros_like(self.bucket.buffer())
        owed: Tensor = self.state.error_dict.get(0, nothing)
        return owed[: nothing.numel()]


class Grace(Entrant):
    """GRACE's compressor with its memory and communicator, combined as in GRACE's README."""

    def __init__(self, shape: tuple[int, int], compressor: Any, memory: Any, route: str) -> None:
        self.shape, self.memory = shape, memory
        module, name = ("allreduce", "Allreduce") if route == "sum" else ("allgather", "Allgather")
        kind = of_grace(f"communicator.{module}", name)
        self.communicator = kind(compressor, memory, dist.get_world_size())

    def load(self, gradient: Tensor) -> None:
        self.gradient = gradient.view(self.shape).clone()

    def step(self) -> Tensor:
        out: Tensor = self.communicator.step(self.gradient, "weight")
        return out.flatten()

    def owed(self) -> Tensor | None:
        kept = getattr(self.memory, "gradients", getattr(self.memory, "residuals", None))
        return None if kept is None else kept["weight"].flatten()


class Authors(Entrant):
    """PowerSGD by its authors. The error feedback stays in the gradient, to which backward adds."""

    def __init__(self, shape: tuple[int, int], rounds: int) -> None:
        self.gradient = torch.zeros(shape)
        theirs = importlib.import_module("powersgd")
        config = theirs.Config(
            rank=KNOBS["powersgd"]["rank"], num_iters_per_step=rounds,
            start_compressing_after_num_steps=0,
        )  # fmt: skip
        self.aggregator = theirs.PowerSGD([self.gradient], config)

    def load(self, gradient: Tensor) -> None:
        self.gradient += gradient.view_as(self.gradient)

    def step(self) -> Tensor:
        out: Tensor = self.aggregator.aggregate([self.gradient])[0]
        return out.flatten()

    def owed(self) -> Tensor | None:
        return self.gradient.flatten()


#: A function that returns a new entrant for a gradient of this shape. Its second argument,
#: ``plain``, turns momentum off, with which sent gradients would not sum to the gradients.
Make: TypeAlias = Callable[[tuple[int, int], bool], Entrant]


@dataclass(frozen=True)
class Row:
    """An implementation of a method: its author, its constructor and the claim to check."""

    method: str
    by: str
    make: Make
    claim: str


def of_grace(module: str, name: str) -> Any:
    """Return a class of GRACE."""
    return getattr(importlib.import_module(f"grace_dl.dist.{module}"), name)


def entry(method: str) -> tuple[Any, dict[str, Any]]:
    """Return this project's module of a method, and its knobs in the comparison."""
    module = programs.load_module(f"harness.training.compressors.{method}")
    known = Catalogue().entries["compressors"][method].knobs
    return module, {**known, **KNOBS.get(method, {})}


def ours(method: str) -> Row:
    """Return the row of this project's implementation."""
    module, knobs = entry(method)

    def make(shape: tuple[int, int], plain: bool) -> Entrant:
        context = SimpleNamespace(
            world_size=dist.get_world_size(), rank=dist.get_rank(), device=torch.device("cpu"),
            case=SimpleNamespace(seed=0),
        )  # fmt: skip
        changed = getattr(module, "TELESCOPES", {}) if plain else {}
        return Hooked(shape, module.build(context, {**knobs, **changed}))

    return Row(method, "ours", make, getattr(module, "CLAIM", "contracts"))


def hooked(hook: Callable[..., Any]) -> Make:
    """Return the constructor of a hook of torch for the world of all ranks."""
    return lambda shape, _: Hooked(shape, lambda bucket: hook(dist.group.WORLD, bucket))


def of_torch() -> Iterator[tuple[str, str, Make]]:
    """Yield torch's hooks. The hooks with 8 bits have one scale in all, or one for 512 elements."""
    hooks: dict[tuple[str, str], Callable[..., Any]] = {
        ("fp16", "torch"): default_hooks.fp16_compress_hook,
        ("bf16", "torch"): default_hooks.bf16_compress_hook,
        ("int8", "torch tensor"): quantization_hooks.quantization_pertensor_hook,
        ("int8", "torch channel"): quantization_hooks.quantization_perchannel_hook,
    }
    for (method, by), hook in hooks.items():
        yield method, by, hooked(hook)
    yield "powersgd", "torch", lambda shape, _: LowRank(shape)


def grace_parts(  # noqa: C901  (a branch for each of GRACE's methods)
    method: str, plain: bool
) -> tuple[Any, Any, str]:
    """Return GRACE's compressor, memory and route ("sum" or "gather") for a method.

    The settings are those of this project's implementation.
    """
    knobs = KNOBS.get(method, {})
    world = dist.get_world_size()

    def compressor(name: str, *given: Any) -> Any:
        file = "efsignsgd" if method == "efsign" else method
        return of_grace(f"compressor.{file}", name)(*given)

    residual = of_grace("memory.residual", "ResidualMemory")()
    nothing = of_grace("memory.none", "NoneMemory")()
    match method:
        case "topk":
            return compressor("TopKCompressor", knobs["rho"]), residual, "gather"
        case "randomk":
            return compressor("RandomKCompressor", knobs["rho"]), residual, "sum"
        case "threshold":
            return compressor("ThresholdCompressor", knobs["threshold"]), residual, "gather"
        case "dgc":
            momentum = 0.0 if plain else knobs["momentum"]
            memory = of_grace("memory.dgc", "DgcMemory")(momentum, False, world)
            return compressor("DgcCompressor", knobs["rho"]), memory, "gather"
        case "qsgd":
            return compressor("QSGDCompressor", 7, 512), nothing, "gather"
        case "terngrad":
            return compressor("TernGradCompressor"), nothing, "gather"
        case "natural":
            return compressor("NaturalCompressor"), nothing, "gather"
        case "signsgd":
            return compressor("SignSGDCompressor"), nothing, "gather"
        case "efsign":
            memory = of_grace("memory.efsignsgd", "EFSignSGDMemory")(1.0)
            return compressor("EFSignSGDCompressor", 1.0), memory, "gather"
        case "onebit":
            return compressor("OneBitCompressor"), residual, "gather"
        case "fp16":
            return compressor("FP16Compressor"), nothing, "sum"
        case "powersgd":
            made = compressor("PowerSGDCompressor", knobs["rank"], True, world)
            memory = of_grace("memory.powersgd", "PowerSGDMemory")(made.q_memory, knobs["rank"])
            return made, memory, "sum"
    raise KeyError(method)


#: Methods that GRACE implements, too.
IN_GRACE = (
    "topk", "randomk", "threshold", "dgc", "qsgd", "terngrad", "natural", "signsgd", "efsign",
    "onebit", "fp16", "powersgd",
)  # fmt: skip


def rows(grace: str | None, powersgd: str | None, only: Sequence[str]) -> list[Row]:
    """Return all implementations by method, with this project's first."""
    others = list(of_torch())
    if grace:
        sys.path.insert(0, grace)
        others += [
            (m, "GRACE", lambda s, p, m=m: Grace(s, *grace_parts(m, p)))  # type: ignore[misc]
            for m in IN_GRACE
        ]
    if powersgd:
        sys.path.insert(0, powersgd)
        others.append(("powersgd", "authors x1", lambda shape, _: Authors(shape, 1)))
        others.append(("powersgd", "authors x2", lambda shape, _: Authors(shape, 2)))
    out = []
    for method in (*IN_GRACE, "bf16", "int8"):
        theirs = [(by, make) for m, by, make in others if m == method]
        if theirs and (not only or method in only):
            measured = ours(method)
            out += [measured, *(Row(method, by, make, measured.claim) for by, make in theirs)]
    return out
