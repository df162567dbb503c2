"""Loss scaling for fp16: torch's GradScaler, with a list of the steps that it skipped."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Scaled:
    """A wrapper of GradScaler that scales losses, and steps the optimizer with unscaled gradients.

    ``scale`` is the initial factor; 1 disables scaling. If gradients have overflowed, the step is
    skipped and the factor is halved. ``skipped`` lists the numbers of the skipped steps.
    """

    def __init__(self, device: torch.device, scale: float) -> None:
        self.enabled = scale != 1.0
        self.skipped: list[int] = []
        self._steps = 0
        self._stepped = False
        self._watched: Optimizer | None = None
        self._scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=self.enabled)

    def scale(self, loss: Tensor) -> Tensor:
        """Return the scaled loss, on which the caller runs backward."""
        return self._scaler.scale(loss) if self.enabled else loss

    def step(self, optimizer: Optimizer) -> None:
        """Step the optimizer, unless its gradients have overflowed."""
        if not self.enabled:
            optimizer.step()
            return
        if self._watched is not optimizer:
            optimizer.register_step_post_hook(self._note)
            self._watched = optimizer
        self._stepped = False
        self._scaler.step(optimizer)
        self._scaler.update()
        if not self._stepped:
            self.skipped.append(self._steps)
        self._steps += 1

    def _note(self, *_: Any) -> None:
        self._stepped = True

    def state(self) -> Mapping[str, Any]:
        """Return the state for a checkpoint."""
        return {"steps": self._steps, **self._scaler.state_dict()}

    def remember(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state`` returned."""
        scaled_state = dict(state)
        self._steps = scaled_state.pop("steps")
        self._scaler.load_state_dict(scaled_state)
