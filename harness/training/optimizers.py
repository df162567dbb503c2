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
    """Yield the steps in which a variance is updated, as ranges (start, stop, stride).

    The update after the j-th one follows 2^floor(j / kappa) steps later, up to the step ``until``
    (Lu et al., 2022, section 6.1). If ``kappa`` is 0, the variance is updated in every step.
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
    """Return whether one of the ranges (start, stop, stride) contains the step."""
    return any(step in range(*steps) for steps in ranges)


class FrozenAdam(Optimizer):
    """Adam whose variance is frozen after ``frozen_after`` steps (Tang et al., 2021, Algorithm 1).

    Updates are then linear in the gradients. Ranks may therefore exchange momentum instead of
    gradients, as the compressor ``onebit_adam`` does. As in the paper, moments are not
    bias-corrected. ``fresh`` holds the ranges of steps in which the variance is updated; a strategy
    may replace them.
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
        """Return the tensor that divides the parameter's momentum in a step."""
        square: Tensor = self.state[parameter]["square"]
        return square.sqrt().add_(float(self.defaults["eps"]))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
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


#: Name of the attribute that states if a parameter belongs to an embedding or to the last layer.
OUTER = "is_of_an_outer_layer"
#: Newton-Schulz coefficients of Jordan et al. (2024), who chose the steepest slope at zero.
QUINTIC = (3.4445, -4.7750, 2.0315)
#: Shampoo preconditions blocks of at most this many rows and columns (Shi et al., 2023).
BLOCK = 1024


def note_outer(model: nn.Module) -> None:
    """Mark for every parameter whether it belongs to an embedding or to the last layer."""
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
    """Copy the marks of ``note_outer`` to the parameters that replace the marked ones."""
    for old, new in zip(before, after, strict=True):
        # Parameters that were split by width or by expert are not whole matrices and have no mark.
        if hasattr(old, OUTER):
            setattr(new, OUTER, is_outer(old))


def is_outer(parameter: nn.Parameter) -> bool:
    """Return whether a parameter belongs to an embedding or to the last layer.

    Raise AssertionError if the parameter has not been marked.
    """
    noted: bool | None = getattr(parameter, OUTER, None)
    assert noted is not None, "a parameter has no mark of note_outer or carry_outer"
    return noted


def is_hidden(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a matrix between the embeddings and the last layer."""
    return parameter.ndim > 1 and not is_outer(parameter)


def as_matrices(tensor: Tensor) -> Tensor:
    """Flatten a tensor of more than three dimensions to a matrix; return any other unchanged."""
    return tensor.flatten(1) if tensor.ndim > 3 else tensor


def gathered(parameter: nn.Parameter, held: Tensor) -> Tensor:
    """Return the whole tensor of which this rank has the part ``held``. This is a collective.

    The tensor is sharded in the same way as the parameter. If the parameter is not a DTensor,
    ``held`` is already the whole tensor.
    """
    if not isinstance(parameter, DTensor):
        return held
    like: DTensor = parameter
    whole: Tensor = DTensor.from_local(
        held, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
    ).full_tensor()
    return whole


def own_part(parameter: nn.Parameter, whole: Tensor) -> Tensor:
    """Return this rank's shard of a tensor that every rank holds whole.

    The tensor is sharded in the same way as the parameter.
    """
    if not isinstance(parameter, DTensor):
        return whole
    mesh = parameter.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    part: Tensor = everywhere.redistribute(placements=parameter.placements).to_local()
    return part


def gathers(hidden: Sequence[Size], size: int, ranks: int) -> traffic.Traffic:
    """Return the traffic of one step of Muon if each rank holds a shard of these matrices."""
    total = traffic.Traffic()
    for shape in hidden:
        total += traffic.all_gather(traffic.padded([shape], size, ranks), ranks)
    return total


class Muon(Optimizer):
    """Momentum with orthogonalised updates (Jordan et al., 2024), and AdamW for other parameters.

    AdamW updates embeddings, the last layer, and all parameters that are not matrices. The learning
    rate of these parameters is ``other`` times ``lr``.
    """

    def __init__(  # noqa: PLR0913  (all settings of the optimizer)
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
        """Update all parameters. This is a collective of the ranks that hold parts of them."""
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
        """Update one matrix along its Nesterov momentum, with all singular values set near 1."""
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
    """Return approximately U V^T for matrices U S V^T.

    The result is computed in ``dtype`` with ``steps`` Newton-Schulz iterations.
    """
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
    """Shampoo: gradients preconditioned on both sides (Gupta, Koren and Singer, 2018).

    The preconditioners are inverse fourth roots of the covariances of rows and columns. As in Shi
    et al. (2023), matrices are split into blocks, covariances are running means, and each update is
    scaled to the norm of Adam's update (grafting). With the strategy ``zero1`` the ranks divide the
    work. Before a root is taken, ``eps`` times the largest eigenvalue is added to all eigenvalues
    (Anil et al., 2020). Adam updates the parameters that are not matrices.
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
        """Update all parameters that have a gradient."""
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
        """Return the update of a matrix, with each block scaled to the norm of Adam's update."""
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
    """Return the initial state of a block: two zero covariances and no roots."""
    rows, columns = block.shape[-2:]
    stack = block.shape[:-2]
    of_rows = block.new_zeros(*stack, rows, rows)
    right = block.new_zeros(*stack, columns, columns)
    return {"left": of_rows, "right": right, "roots": []}


def blocks(shape: Size) -> list[tuple[Any, ...]]:
    """Return the index of each block of a matrix, or of each matrix of a stack."""
    rows, columns = shape[-2:]
    return [
        (..., slice(i, min(i + BLOCK, rows)), slice(j, min(j + BLOCK, columns)))
        for i in range(0, rows, BLOCK)
        for j in range(0, columns, BLOCK)
    ]


def root(matrix: Tensor, eps: float) -> Tensor:
    """Return the inverse fourth root of a positive semi-definite matrix.

    ``eps`` times the largest eigenvalue is added to all eigenvalues first.
    """
    values, vectors = torch.linalg.eigh(matrix.double())
    largest = values[..., -1:].clamp(min=1e-300)
    inverse = values.clamp(min=0).add(eps * largest).pow(-0.25)
    roots: Tensor = ((vectors * inverse[..., None, :]) @ vectors.mT).to(matrix.dtype)
    return roots


def adam(state: dict[str, Any], gradient: Tensor, betas: tuple[float, float], eps: float) -> Tensor:
    """Return Adam's direction for this gradient, and update the moments in ``state``."""
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
    """The part of a compressor that optimizers need to know."""

    @property
    def start(self) -> int:
        """The number of uncompressed steps before the compressor starts."""
        ...


class LayerWise(Optimizer):
    """The base of optimizers that scale each tensor's step by the norm of its weights."""

    def direction(self, parameter: nn.Parameter, weights: Tensor, gradient: Tensor) -> Tensor:
        """Return the update direction of this rank's part of a tensor, before it is scaled."""
        raise NotImplementedError

    def compared(self, gradients: list[Tensor], directions: list[Tensor]) -> list[Tensor]:
        """Return the tensors whose norms are the denominators of the scaling factors."""
        return directions

    def trusted(self, weights: Tensor, others: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the factor of each tensor's direction, shape (tensors,).

        ``weights`` and ``others`` are the norms of the weights and of the tensors that ``compared``
        returns. The factor is their ratio, or 1 if either norm is 0.
        """
        ratio = weights / others
        return torch.where((weights > 0) & (others > 0), ratio, torch.ones_like(ratio))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all parameters. This is a collective of the ranks that hold parts of them."""
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
        """Apply the scaled direction to the weights."""
        weight.sub_(way, alpha=group["lr"])


class LARS(LayerWise):
    """Layer-wise adaptive rates with momentum (You, Gitman and Ginsburg, 2017, Algorithm 1).

    The direction g + b w is scaled by trust |w| / (|g| + b |w|), where b is the weight decay.
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
    """Adam whose steps are proportional to the norm of each tensor's weights (You et al., 2020)."""

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
#: Steps after which the variance is frozen if the strategy has no knob ``start``.
FROZEN_AFTER = 16
#: Optimizers that need whole tensors, not shards, on each rank that updates them.
_WHOLE = (Name.ADAFACTOR, Name.SHAMPOO)
#: Memory at an optimizer step in multiples of the weights, including weights and gradients. Shampoo
#: adds two covariances and two roots of each block; each counts as two copies of a square block.
_COPIES = {Name.SHAMPOO: 12}


def copies(case: CaseSpec) -> int:
    """Return the memory that an optimizer step needs, in multiples of the weights."""
    return _COPIES.get(case.optimizer, 4)


def check(case: CaseSpec, mesh: Mesh, compressor: Coding | None) -> None:
    """Raise ValueError if the optimizer cannot be used on this mesh or with this compressor."""
    name = case.optimizer
    parts = [d for d in (Dim.FSDP, Dim.TP, Dim.EP) if mesh.size(d) > 1]
    cut = parts if name in _WHOLE else [part for part in parts if part is not Dim.FSDP]
    if cut and name in (*_WHOLE, Name.MUON):
        raise ValueError(
            f"optimizer={name} needs whole matrices, but dimension {cut[0]} splits them"
        )
    if name is Name.FROZEN_ADAM and compressor is not None and compressor.start < 1:
        raise ValueError(
            f"optimizer={name} freezes Adam's variance after the dense steps, of which there are"
            f" none; expected at least 1, for example --set {case.strategy}.start=16"
        )


def chosen(
    case: CaseSpec, global_batch: int, on_cpu: bool
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Return the class of a case's optimizer and its keyword arguments."""
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
    """Return one parameter group for plain tensors and one for the DTensors of each mesh.

    Fused and foreach kernels do not accept a mixture of these.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return [{"params": group} for group in groups.values()]


def rate(case: CaseSpec, global_batch: int) -> float:
    """Return the factor by which a global batch scales the learning rate of the base batch.

    Linear scaling is from Goyal et al., 2017; square root scaling is from Krizhevsky, 2014.
    """
    grown = global_batch / case.base_batch
    powers = {LearningRate.FIXED: 0.0, LearningRate.LINEAR: 1.0, LearningRate.SQRT: 0.5}
    return float(grown ** powers[case.learning_rate])


def prepared(
    optimizer: Optimizer, case: CaseSpec, stages: dist.ProcessGroup | None = None
) -> Optimizer:
    """Add gradient clipping and learning-rate warm-up to the optimizer, and return it.

    A hook applies both before each step. ``stages`` is passed to ``norms.clip``.
    """
    if case.warm_up:
        for group in optimizer.param_groups:
            # Kept in the optimizer's state, so a resumed run continues its warm-up.
            group.update(full_lr=group["lr"], begun=0)

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


#: Optimizers that use norms or products of whole tensors.
_WITH_NORMS = (Name.LARS, Name.LAMB, Name.MUON, *_WHOLE)


def refuse(case: CaseSpec, why: str, *, clip: bool = True, warm_up: bool = False) -> None:
    """Raise ValueError if the case sets an option that a strategy cannot support.

    Optimizers that use whole tensors are always refused. ``clip`` refuses gradient clipping, for
    strategies that do not know the norm of all gradients. ``warm_up`` refuses learning-rate
    warm-up, for strategies that do not step all parameters together. ``why`` names the property of
    the strategy that rules these options out.
    """
    asked: Sequence[tuple[bool, str]] = (
        (case.optimizer in _WITH_NORMS, f"optimizer={case.optimizer}"),
        (clip and case.clip > 0, "clip"),
        (warm_up and case.warm_up > 0, "warm_up"),
    )
    for is_asked, name in asked:
        if is_asked:
            raise ValueError(f"{name} is not supported with {why}")
