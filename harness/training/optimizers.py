"""Steps of the parameters: by which rule, how far, and what happens to the gradients before.

Layer-wise optimizers and clipping use the norms of whole tensors, wherever these are cut.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from harness.cases import CaseSpec, Dim, LearningRate, Mesh, Optimizer as Name, Precision, Stepping
from harness.cases.case import USUAL_LR
from harness.training.frozen import FrozenAdam
from harness.training.matrices import Muon, Shampoo
from harness.training.parallel import norms
from harness.training.tuning import kernels


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
