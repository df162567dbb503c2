"""Optimizers: update rules, learning rates and clipping."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Size, Tensor, nn
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import Optimizer

from harness.cases import CaseSpec, Dim, LearningRate, Mesh, Optimizer as Name, Precision, Stepping
from harness.cases.case import USUAL_LR
from harness.training.parallel import norms, traffic
from harness.training.tuning import kernels


def refreshed(until: int, kappa: int) -> Iterator[tuple[int, int, int]]:
    """The steps that bring a variance up to date, as ranges (start, stop, stride).

    The j-th is followed by the next one 2^floor(j / kappa) steps later, up to ``until`` (Lu et al.,
    2022, section 6.1). ``kappa`` = 0: all of them.
    """
    if not kappa:
        yield 0, until, 1
        return
    first, stride = 0, 1
    while first < until:
        yield first, min(first + kappa * stride, until), stride
        first += kappa * stride
        stride *= 2


def is_in(step: int, ranges: Iterable[tuple[int, int, int]]) -> bool:
    return any(step in range(*steps) for steps in ranges)


class FrozenAdam(Optimizer):
    """Adam for ``frozen_after`` steps; then its variance stays (Tang et al., 2021, Algorithm 1).

    So that what is left is linear in the gradients, and momentum may be exchanged in their place:
    the compressor ``onebit_adam`` does it. As in the paper nothing corrects for a bias of moments.
    ``fresh`` are the steps that bring the variance up to date; a strategy may say which.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        frozen_after: int,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        super().__init__(params, dict(lr=lr, frozen_after=frozen_after, betas=betas, eps=eps))
        self.fresh = tuple(refreshed(frozen_after, 0))

    def divisor(self, parameter: nn.Parameter) -> Tensor:
        """The divisor of a parameter's momentum in a step."""
        square: Tensor = self.state[parameter]["square"]
        return square.sqrt().add_(float(self.defaults["eps"]))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = norms.gradient(parameter)
                state = self.state[parameter]
                if not state:
                    state["step"] = 0
                    state["mean"] = torch.zeros_like(gradient)
                    state["square"] = torch.zeros_like(gradient)
                mean: Tensor = state["mean"].lerp_(gradient, 1 - first)
                if is_in(state["step"], self.fresh):
                    state["square"].lerp_(gradient.square(), 1 - second)
                state["step"] += 1
                norms.local(parameter.detach()).addcdiv_(
                    mean, self.divisor(parameter), value=-group["lr"]
                )


#: The attribute of a parameter of the first or last layer: an embedding, or a head.
OUTER = "is_of_an_outer_layer"
#: Newton-Schulz coefficients of Jordan et al. (2024): steepest at zero.
QUINTIC = (3.4445, -4.7750, 2.0315)
#: Rows and columns of a block that Shampoo preconditions by itself (Shi et al., 2023).
BLOCK = 1024


def note_outer(model: nn.Module) -> None:
    """Say of every parameter whether it is of an embedding or of the last layer."""
    embedding = (
        module
        for module in model.modules()
        if isinstance(module, nn.Embedding) or hasattr(module, "embeds")
    )
    outer = {p for module in embedding for p in module.parameters()}
    parts = list(model.children()) or [model]
    outer |= set(parts[-1].parameters())
    for parameter in model.parameters():
        setattr(parameter, OUTER, parameter in outer)


def carry_outer(before: Iterable[nn.Parameter], after: Iterable[nn.Parameter]) -> None:
    """Say the same of the parameters that stand for these from now on."""
    for old, new in zip(before, after, strict=True):
        if hasattr(old, OUTER):  # what is cut by width or by expert is no whole matrix any more
            setattr(new, OUTER, is_outer(old))


def is_outer(parameter: nn.Parameter) -> bool:
    """Whether it is of an embedding or of the last layer; AssertionError if nobody has said so."""
    noted: bool | None = getattr(parameter, OUTER, None)
    assert noted is not None, "nobody said which layer a parameter is of"
    return noted


def is_hidden(parameter: nn.Parameter) -> bool:
    """Whether it is a matrix between the first layer and the last."""
    return parameter.ndim > 1 and not is_outer(parameter)


def as_matrices(tensor: Tensor) -> Tensor:
    """Views the tensor as a matrix, or a stack of them."""
    return tensor.flatten(1) if tensor.ndim > 3 else tensor


def gathered(parameter: nn.Parameter, held: Tensor) -> Tensor:
    """The whole of a tensor of which ranks hold such parts as of the parameter; a collective."""
    if not isinstance(parameter, DTensor):
        return held
    like: DTensor = parameter
    whole: Tensor = DTensor.from_local(
        held, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    ).full_tensor()
    return whole


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """The part that this rank holds of a tensor that is whole on all of them."""
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part: Tensor = everywhere.redistribute(placements=parameter.placements).to_local()
    return part


def gathers(hidden: Sequence[Size], size: int, ranks: int) -> traffic.Traffic:
    """The bytes that a step of Muon sends where ranks hold parts of these matrices."""
    total = traffic.Traffic()
    for shape in hidden:
        total += traffic.all_gather(traffic.padded([shape], size, ranks), ranks)
    return total


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal (Jordan et al., 2024); AdamW for all else.

    All else: embeddings, the last layer, and what is no matrix, at ``other`` times the rate.
    """

    def __init__(  # noqa: PLR0913  (settings of an optimizer)
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        other: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        defaults = dict(
            lr=lr,
            momentum=momentum,
            weight_decay=weight_decay,
            other=other,
            betas=betas,
            eps=eps,
            dtype=dtype,
        )
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all parameters. A collective of the ranks that hold them in parts."""
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = norms.gradient(parameter)
                weights = norms.local(parameter.detach())
                hidden = is_hidden(parameter)
                rate = group["lr"] * (1.0 if hidden else group["other"])
                weights.mul_(1 - rate * group["weight_decay"])
                if hidden:
                    self.orthogonal(parameter, weights, gradient, group)
                else:
                    way = adam(self.state[parameter], gradient, group["betas"], group["eps"])
                    weights.sub_(way, alpha=rate)

    def orthogonal(
        self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor, group: dict[str, Any]
    ) -> None:
        """Step one matrix along Nesterov's momentum with all singular values near 1."""
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(gradient)
        beta = group["momentum"]
        momentum: Tensor = state["momentum"].lerp_(gradient, 1 - beta)
        ahead = gathered(parameter, gradient.lerp(momentum, beta))
        matrices = as_matrices(ahead)
        rows, columns = matrices.shape[-2:]
        longer = max(1.0, rows / columns) ** 0.5
        update = orthogonalised(matrices, group["dtype"]).view(ahead.shape).to(weights.dtype)
        weights.sub_(own_part(parameter, update), alpha=group["lr"] * longer)


def orthogonalised(matrices: Tensor, dtype: torch.dtype, steps: int = 5) -> Tensor:
    """U V^T of U S V^T, roughly: five steps of Newton-Schulz, in ``dtype``."""
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.to(dtype)
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    made: Tensor = (x.mT if tall else x).contiguous()
    return made


class Shampoo(Optimizer):
    """Gradients between the roots of their two covariances (Gupta, Koren and Singer, 2018).

    As Shi et al. (2023) train with it: blocks of matrices, running means, and steps as long as
    Adam's (grafting). Ranks share out the work under ``zero1``. A root takes at least ``eps`` of
    the largest eigenvalue for the smallest, as Anil et al. (2020) do. What is no matrix is Adam's.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        every: int = 1,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, every=every)
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                gradient = parameter.grad
                state = self.state[parameter]
                way = adam(state, gradient, group["betas"], 1e-8)
                if parameter.ndim > 1:
                    way = self.preconditioned(state, gradient, way, group)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.sub_(way, alpha=group["lr"])

    def preconditioned(
        self, state: dict[str, Any], gradient: Tensor, adams: Tensor, group: dict[str, Any]
    ) -> Tensor:
        """The direction of a matrix, block by block, each as long as that of Adam's."""
        first, second = group["betas"]
        updates = torch.empty_like(adams)
        whole = as_matrices(gradient)
        mean = as_matrices(state["mean"]) / (1 - first ** state["step"])
        graft = as_matrices(adams)
        target = as_matrices(updates)
        for number, place in enumerate(blocks(whole.shape)):
            block = whole[place]
            if f"block{number}" not in state:
                state[f"block{number}"] = covariances(block)
            sums = state[f"block{number}"]
            sums["left"].lerp_(block @ block.mT, 1 - second)
            sums["right"].lerp_(block.mT @ block, 1 - second)
            if state["step"] % group["every"] == 0 or not sums["roots"]:
                unbiased = 1 - second ** state["step"]
                sums["roots"] = [root(sums[s] / unbiased, group["eps"]) for s in ("left", "right")]
            left, right = sums["roots"]
            way = left @ mean[place] @ right
            length = graft[place].norm(dim=(-2, -1), keepdim=True)
            norm = way.norm(dim=(-2, -1), keepdim=True)
            target[place] = way * torch.where(norm > 0, length / norm, torch.zeros_like(norm))
        return updates


def covariances(block: Tensor) -> dict[str, Any]:
    """Room for a block's two covariances, and for their roots."""
    rows, columns = block.shape[-2:]
    stack = block.shape[:-2]
    of_rows = block.new_zeros(*stack, rows, rows)
    right = block.new_zeros(*stack, columns, columns)
    return {"left": of_rows, "right": right, "roots": []}


def blocks(shape: Size) -> list[tuple[Any, ...]]:
    """Where the blocks of a matrix are, or of each of a stack."""
    rows, columns = shape[-2:]
    return [
        (..., slice(i, min(i + BLOCK, rows)), slice(j, min(j + BLOCK, columns)))
        for i in range(0, rows, BLOCK)
        for j in range(0, columns, BLOCK)
    ]


def root(matrix: Tensor, eps: float) -> Tensor:
    """The inverse fourth root of a symmetric matrix without negative eigenvalues."""
    values, vectors = torch.linalg.eigh(matrix.double())
    largest = values[..., -1:].clamp(min=1e-300)
    inverse = values.clamp(min=0).add(eps * largest).pow(-0.25)
    roots: Tensor = ((vectors * inverse[..., None, :]) @ vectors.mT).to(matrix.dtype)
    return roots


def adam(state: dict[str, Any], gradient: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
    """Adam's direction of this gradient, whose moments are kept in ``state``."""
    if "step" not in state:
        state.update(step=0, mean=torch.zeros_like(gradient), square=torch.zeros_like(gradient))
    first, second = betas
    state["step"] += 1
    mean: Tensor = state["mean"].lerp_(gradient, 1 - first)
    square: Tensor = state["square"].lerp_(gradient.square(), 1 - second)
    root_of_square = (square / (1 - second ** state["step"])).sqrt_().add_(eps)
    way: Tensor = (mean / (1 - first ** state["step"])).div_(root_of_square)
    return way


class Coding(Protocol):
    """Requests to a compressor: how many steps are dense."""

    @property
    def start(self) -> int: ...


class LayerWise(Optimizer):
    """The length of each tensor's step follows from the norm of its weights."""

    def direction(self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor) -> Tensor:
        """Where to, before its length is set; of this rank's part."""
        raise NotImplementedError

    def compared(self, gradients: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
        """The tensors whose norms those of the weights are compared with."""
        return directions

    def trusted(self, weights: Tensor, others: Tensor, group: dict[str, Any]) -> Tensor:
        """The factor of each tensor's direction, (tensors,), from the norms of its weights and of
        what is ``compared`` with them; 1 where either is 0.
        """
        ratio = weights / others
        return torch.where((weights > 0) & (others > 0), ratio, torch.ones_like(ratio))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of all tensors. A collective of the ranks that hold them in parts."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            weights = [norms.local(p.detach()) for p in parameters]
            gradients = [norms.gradient(p) for p in parameters]
            ways = [
                self.direction(p, tensor, gradient)
                for p, tensor, gradient in zip(parameters, weights, gradients, strict=True)
            ]
            others = self.compared(gradients, ways)
            lengths = norms.squares([*parameters, *parameters], [*weights, *others]).sqrt()
            of_weights, of_others = lengths.chunk(2)
            trust = self.trusted(of_weights, of_others, group)
            for parameter, weight, way, scale in zip(parameters, weights, ways, trust, strict=True):
                self.go(parameter, weight, way * scale.to(way.dtype), group)

    def go(
        self, parameter: nn.Parameter, weight: Tensor, way: Tensor, group: dict[str, Any]
    ) -> None:
        """Take the step."""
        weight.sub_(way, alpha=group["lr"])


class LARS(LayerWise):
    """Layer-wise adaptive rates, with momentum (You, Gitman and Ginsburg, 2017, Algorithm 1).

    The direction g + b w is scaled by trust |w| / (|g| + b |w|), b being the weight decay.
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 1e-4,
        trust: float = 1e-2,
    ) -> None:
        defaults = dict(lr=lr, momentum=momentum, weight_decay=weight_decay, trust=trust)
        super().__init__(params, defaults)

    def direction(self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor) -> Tensor:
        decay: float = self.param_groups[0]["weight_decay"]
        return gradient.add(weights, alpha=decay)

    def compared(self, gradients: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
        return gradients

    def trusted(self, weights: Tensor, others: Tensor, group: dict[str, Any]) -> Tensor:
        decayed = torch.where(others > 0, others + group["weight_decay"] * weights, others)
        return super().trusted(weights, decayed, group) * float(group["trust"])

    def go(
        self, parameter: nn.Parameter, weight: Tensor, way: Tensor, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(way)
        state["momentum"].mul_(group["momentum"]).add_(way, alpha=group["lr"])
        weight.sub_(state["momentum"])


class LAMB(LayerWise):
    """Adam's direction, each tensor's step as long as its weights (You et al., 2020)."""

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
    ) -> None:
        defaults = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        super().__init__(params, defaults)

    def direction(self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor) -> Tensor:
        group = self.param_groups[0]
        state = self.state[parameter]
        if not state:
            state.update(step=0, mean=torch.zeros_like(weights), square=torch.zeros_like(weights))
        first, second = group["betas"]
        mean: Tensor = state["mean"]
        square: Tensor = state["square"]
        state["step"] += 1
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (square / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
        way: Tensor = (mean / (1 - first ** state["step"])).div_(root)
        return way.add_(weights, alpha=group["weight_decay"])


KINDS: dict[Name, type[Optimizer]] = {
    Name.SGD: torch.optim.SGD,
    Name.MOMENTUM: torch.optim.SGD,
    Name.ADAMW: torch.optim.AdamW,
    Name.ADAFACTOR: torch.optim.Adafactor,
    Name.FROZEN_ADAM: FrozenAdam,
    Name.LARS: LARS,
    Name.LAMB: LAMB,
    Name.MUON: Muon,
    Name.SHAMPOO: Shampoo,
}
#: Steps after which a variance is frozen where no compressor says when it begins.
FROZEN_AFTER = 16
#: Those whose steps follow from whole tensors that no rank may hold a part of.
_WHOLE = (Name.ADAFACTOR, Name.SHAMPOO)
#: Copies of all weights at a step, gradients among them; four covariances and roots of square
#: blocks are twice a matrix each.
_COPIES = {Name.SHAMPOO: 12}


def copies(case: CaseSpec) -> int:
    """How many times the bytes of its weights an optimizer's step needs."""
    return _COPIES.get(case.optimizer, 4)


def check(case: CaseSpec, mesh: Mesh, compressor: Coding | None) -> None:
    """ValueError for an optimizer that cannot step what ranks hold, or how they hear of it."""
    name = case.optimizer
    parts = [d for d in (Dim.FSDP, Dim.TP, Dim.EP) if mesh.size(d) > 1]
    cut = parts if name in _WHOLE else [part for part in parts if part is not Dim.FSDP]
    if cut and name in (*_WHOLE, Name.MUON):
        raise ValueError(f"optimizer={name} needs whole matrices, of which {cut[0]} holds parts")
    if name is Name.FROZEN_ADAM and compressor is not None and compressor.start < 1:
        raise ValueError(
            f"optimizer={name} freezes Adam's variance after the first dense steps:"
            f" --set {case.strategy}.start=16"
        )


def chosen(
    case: CaseSpec, global_batch: int, on_cpu: bool
) -> tuple[type[Optimizer], dict[str, Any]]:
    """The class of a case's optimizer, and its settings."""
    kind = KINDS[case.optimizer]
    usual = case.lr or USUAL_LR[case.optimizer]
    settings: dict[str, Any] = dict(lr=usual * rate(case, global_batch))
    if case.optimizer is Name.MOMENTUM:
        settings["momentum"] = 0.9
    if case.optimizer is Name.FROZEN_ADAM:
        settings["frozen_after"] = int(case.knobs.get(f"{case.strategy}.start", FROZEN_AFTER))
    if case.optimizer is Name.MUON and case.precision is Precision.FP32:
        settings["dtype"] = torch.float32
    if case.optimizer is Name.ADAMW or case.stepping is not Stepping.USUAL:
        settings |= kernels.stepping(case, not on_cpu)
    return kind, settings


def alike(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Parameter groups, each of one kind: plain, or DTensors of one mesh.

    Fused and foreach kernels take no others together.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return [{"params": group} for group in groups.values()]


def rate(case: CaseSpec, global_batch: int) -> float:
    """How many times the base's learning rate is for this batch.

    Linear: Goyal et al., 2017; square root: Krizhevsky, 2014.
    """
    grown = global_batch / case.base_batch
    powers = {LearningRate.FIXED: 0.0, LearningRate.LINEAR: 1.0, LearningRate.SQRT: 0.5}
    return float(grown ** powers[case.learning_rate])


def prepared(
    optimizer: Optimizer, case: CaseSpec, stages: dist.ProcessGroup | None = None
) -> Optimizer:
    """The optimizer, which clips and warms up as the case says before each of its steps."""
    if case.warm_up:
        for group in optimizer.param_groups:
            group.update(full_lr=group["lr"], begun=0)  # part of its state: a resumed run goes on

    def before(given: Optimizer, *_: Any) -> None:
        if case.clip:
            parameters = [
                parameter for group in given.param_groups for parameter in group["params"]
            ]
            norms.clip(parameters, case.clip, stages)
        for group in given.param_groups if case.warm_up else ():
            group["begun"] += 1
            group["lr"] = group["full_lr"] * min(1.0, group["begun"] / case.warm_up)

    if case.clip or case.warm_up:
        optimizer.register_step_pre_hook(before)
    return optimizer


#: Those that look at a tensor as a whole.
_WITH_NORMS = (Name.LARS, Name.LAMB, Name.MUON, *_WHOLE)


def refuse(case: CaseSpec, why: str, *, clip: bool = True, warm_up: bool = False) -> None:
    """ValueError for a strategy that cannot have whole norms, or one step for all parameters."""
    asked: Sequence[tuple[bool, str]] = (
        (case.optimizer in _WITH_NORMS, f"optimizer={case.optimizer}"),
        (clip and case.clip > 0, "clip"),
        (warm_up and case.warm_up > 0, "warm_up"),
    )
    for is_asked, name in asked:
        if is_asked:
            raise ValueError(f"{name} does not go with {why}")
