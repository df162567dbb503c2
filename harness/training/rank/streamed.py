"""The reference of a model that is too large for its device: one block is there at a time.

Forward keeps each block's input on the host; backward runs the block once more. The arithmetic is
that of the whole model, in the same order.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from harness.training.rank.oracle import Oracle


class Streamed(Oracle):
    """Takes the blocks of an nn.Sequential in turn."""

    keeps_frozen = False

    def descend(self, x: Tensor, y: Tensor, scale: float) -> Tensor:
        """The scaled loss of a part, its gradients added to the parameters', which stay here."""
        if not isinstance(self.model, nn.Sequential):
            made = type(self.model).__name__
            raise TypeError(f"{made} is too large for its device, and no nn.Sequential to stream")
        given = []
        output = x
        for block in self.model.children():
            given.append(output.cpu())
            with self._there(block), torch.no_grad(), self.ctx.forward():
                output = block(output)
        output = output.detach().requires_grad_()
        with self.ctx.forward():
            loss = self.ctx.loss(output, y) * scale
        (loss * self.ctx.loss_scale).backward()
        gradient = output.grad
        for block, kept in zip(reversed(list(self.model.children())), reversed(given), strict=True):
            inputs = kept.to(self.ctx.device).detach()
            inputs.requires_grad_(inputs.is_floating_point())
            with self._there(block):
                with self.ctx.forward():
                    again = block(inputs)
                again.backward(gradient)
            gradient = inputs.grad
        return loss.detach()

    @contextlib.contextmanager
    def _there(self, block: nn.Module) -> Iterator[None]:
        """The block on the device, and back on the host with its gradients."""
        block.to(self.ctx.device)
        try:
            yield
        finally:
            block.to("cpu")
