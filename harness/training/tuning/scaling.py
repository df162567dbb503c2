"""Losses that are scaled for fp16: torch's GradScaler, and the steps that it left out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Scaled:
    """Scales losses by ``scale`` before backward, and steps with unscaled gradients.

    1 is for no scaling at all. A step whose gradients have overflown is left out, and the scale
    halved: ``skipped`` are the numbers of those steps.
    """

    def __init__(self, device: torch.device, scale: float) -> None:
        self.enabled = scale != 1.0
        self.skipped: list[int] = []
        self._steps = 0
        self._stepped = False
        self._watched: Optimizer | None = None
        self._scaler = torch.amp.GradScaler(device.type, init_scale=scale, enabled=self.enabled)

    def scale(self, loss: Tensor) -> Tensor:
        """The factor that backward starts from."""
        return self._scaler.scale(loss) if self.enabled else loss

    def step(self, optimizer: Optimizer) -> None:
        """One step of the optimizer, or none."""
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
        """The state for a checkpoint."""
        return {"steps": self._steps, **self._scaler.state_dict()}

    def remember(self, state: Mapping[str, Any]) -> None:
        """Go on from a ``state``."""
        scaled_state = dict(state)
        self._steps = scaled_state.pop("steps")
        self._scaler.load_state_dict(scaled_state)
