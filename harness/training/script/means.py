"""Observe the first losses of a training and the first gradients that it clips.

Recorded are the targets over which losses are means, the graphs that outlive their step, and the
norms by which gradients are clipped.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from harness.training.script.prepared import put

#: Number of backward passes, and of clipped gradients, that are observed.
FIRST = 16
#: Number of backward passes whose graphs are observed.
GRAPHS = 32
#: Relative difference up to which a loss is the same multiple of its cross entropy in each pass.
SAME = 1e-3


class _Held:
    """A hook that a graph keeps alive, and that does nothing."""

    def __call__(self, gradients: Any) -> None: ...


class Means:
    """The first mean cross entropies of a training, and the first norms that gradients had.

    Tensors are kept as they are until the end, because reading one waits for its device.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Tensor, Tensor]] = []  # mean and number of targets since a pass
        self._passes: list[tuple[Tensor, Tensor, Tensor]] = []  # loss, mean, number of targets
        self._single = True  # whether each pass so far began with one cross entropy
        self._norms: list[Tensor] = []
        self._graphs: list[weakref.ref[_Held]] = []
        self._scaled = False  # whether a loss was scaled, and its gradients not yet unscaled
        self.unscaling = False  # whether a method of a gradient scaler is running
        self.clipped_scaled = False  # whether scaled gradients were clipped

    def install(self) -> list[Callable[[], None]]:
        """Install the hooks, and return functions that remove them."""
        clip = self._clipping(nn.utils.clip_grad_norm_)
        scaler = torch.amp.GradScaler
        return [
            put(scaler, "scale", self._noting(scaler.scale, scaled=True)),
            put(scaler, "unscale_", self._noting(scaler.unscale_, scaled=False)),
            put(scaler, "step", self._noting(scaler.step, scaled=False)),
            put(F, "cross_entropy", self._averaging(F.cross_entropy)),
            put(nn.utils, "clip_grad_norm_", clip),
            put(nn.utils.clip_grad, "clip_grad_norm_", clip),
        ]

    def passes(self, loss: object) -> None:
        """Handle the start of a backward pass from ``loss``."""
        if len(self._passes) < FIRST and isinstance(loss, Tensor) and loss.numel() == 1:
            self._single &= len(self._open) == 1
            self._passes += [(loss.detach(), *self._open[0])] if self._open else []
        self._open.clear()
        node = loss.grad_fn if isinstance(loss, Tensor) else None
        if node is not None and len(self._graphs) < GRAPHS:
            held = _Held()
            with contextlib.suppress(RuntimeError):  # a node of a compiled graph takes no hook
                node.register_prehook(held)
                self._graphs.append(weakref.ref(held))

    def graphs_kept(self) -> int:
        """Return how many graphs of the first backward passes still exist."""
        return sum(graph() is not None for graph in self._graphs)

    def targets(self) -> tuple[int, ...]:
        """Return the number of targets behind each of the first mean losses.

        The tuple is empty unless each backward pass begins with one mean cross entropy, multiplied
        by the same number in each pass.
        """
        if not self._single or not self._passes:
            return ()
        factors = [float(loss) / float(mean) for loss, mean, _ in self._passes if mean]
        if not factors or max(factors) - min(factors) > SAME * abs(factors[0]):
            return ()
        return tuple(int(count) for _, _, count in self._passes)

    def norms(self) -> tuple[float, ...]:
        """Return the first norms of gradients that ``clip_grad_norm_`` computed on this rank."""
        return tuple(map(float, self._norms))

    def _averaging(self, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(call)
        def averaged(*args: Any, **more: Any) -> Tensor:
            loss = call(*args, **more)
            if torch.compiler.is_compiling() or len(self._passes) >= FIRST:
                return loss
            target = args[1] if len(args) > 1 else more.get("target")
            mean = (args[6] if len(args) > 6 else more.get("reduction", "mean")) == "mean"
            trains = loss.requires_grad and len(self._open) < FIRST
            if mean and trains and isinstance(target, Tensor):
                ignored = args[4] if len(args) > 4 else more.get("ignore_index", -100)
                self._open.append((loss.detach(), (target != ignored).sum()))
            return loss

        return averaged

    def _noting(self, call: Callable[..., Any], *, scaled: bool) -> Callable[..., Any]:
        """Wrap a method of a gradient scaler that scales a loss, or unscales gradients."""

        @functools.wraps(call)
        def noting(scaler: torch.amp.GradScaler, *args: Any, **more: Any) -> Any:
            self.unscaling = True
            try:
                result = call(scaler, *args, **more)
            finally:
                self.unscaling = False
            self._scaled = scaled and scaler.is_enabled()
            return result

        return noting

    def _clipping(self, call: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(call)
        def clipped(*args: Any, **more: Any) -> Tensor:
            norm = call(*args, **more)
            self.clipped_scaled |= self._scaled
            # The norm of a DTensor is that of all shards.
            if type(norm) is Tensor and len(self._norms) < FIRST:
                self._norms.append(norm.detach())
            return norm

        return clipped
