"""Task ``bits``: compute the same micro-batches on several ranks, and hash the results.

In each step a rank computes three micro-batches with the plain model. Two other ranks compute each
of them, too. The rank hashes the output and each gradient. All ranks then gather the gradients of
each other's first micro-batch. At the end each rank writes its parameters to a file, reads them
back, and hashes both.

The analysis decides later which rank is correct (``analysis/samples/bits.py``). No rank receives
the hashes of another rank.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.cases.batching import COPIES, copied
from harness.launch.wire.beats import Phase
from harness.launch.wire.messages import Bits, InjectedBitFlip, LaunchSpec, Place
from harness.record import ExecutedModel, RankRecord
from harness.record.store import Samples
from harness.training.accelerator import Accelerator
from harness.training.context import build_model, load, make_batch, parts
from harness.training.observe.intake import row_hashes
from harness.training.observe.memory import Memory
from harness.training.rank.setup import Rank


def prepare(spec: LaunchSpec, _: Path) -> None:
    """Import the case's files, and make kernels deterministic, so that bits can be compared."""
    Accelerator(torch.device(spec.case.device)).repeatable()
    load(spec.files)


def run(task: Bits, rank: Rank) -> RankRecord:
    """Compute this rank's micro-batches of all steps, and return the record with the hashes."""
    loaded = load(rank.spec.files)
    case = loaded.at_once(rank.spec.case)
    memory = Memory(rank.accelerator)
    ctx = rank.context(loaded, case)
    with ctx.device:
        model = build_model(loaded, case, case.seed)
    me = ctx.rank
    ranks = ctx.world_size
    samples = ctx.batching.largest
    planted = _Planted(task.flip if task.flip is not None and task.flip.rank == me else None)
    bits = list[list[list[int]]]()
    received = list[list[int]]()
    for step in range(task.steps):
        rank.beat(Phase.GATE, step)
        copies = list[list[int]]()
        sent = torch.empty(0)
        for copy in range(COPIES):
            of = copied(me, step, copy, ranks)
            first = (step * ranks + of) * samples
            batch = make_batch(loaded, case, torch.arange(first, first + samples), ctx.device)
            torch.manual_seed(case.seed + step * ranks + of)
            model.zero_grad(set_to_none=True)
            with planted.weight(model, step, copy), planted.activation(model, step, copy):
                with ctx.forward():
                    output = model(batch.inputs)
                    loss = ctx.loss(output, batch.targets)
                loss.backward()
            gradients = [
                parameter.grad for parameter in model.parameters() if parameter.grad is not None
            ]
            planted.strike(Place.GRADIENT, gradients[step % len(gradients)], step, copy)
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            copies.append([_hash(tensor) for tensor in (_bits_of(output), loss, *gradients, flat)])
            sent = flat if copy == 0 else sent
        bits.append(copies)
        planted.strike(Place.SENT, sent, step, 0)
        hashes = _gathered(sent, ranks)
        planted.strike(Place.RECEIVED, hashes[step % ranks], step, 0)
        received.append([_hash(tensor) for tensor in hashes])
    zeros = np.zeros(task.steps)
    left = Samples(
        marks_s=np.zeros(task.steps + 1),
        loss=zeros,
        step_s=zeros,
        sample_ids=np.zeros((task.steps, 0), dtype=np.int64),
        rss_bytes=zeros.astype(np.int64),
        bits=np.array(bits, dtype=np.int64),
        received=np.array(received, dtype=np.int64),
        stored=np.array(_stored(model, rank.file("work.stored"), planted), dtype=np.int64),
    )
    return rank.record(ExecutedModel(module=type(model).__name__), memory, samples=left)


def _bits_of(output: object) -> Tensor:
    """Return the model's output, or the first output if the model returns several."""
    first = output[0] if isinstance(output, tuple | list) else output
    assert isinstance(first, Tensor)
    return first


def _hash(x: Tensor) -> int:
    """Return an int64 hash of all bits of a tensor."""
    return int(row_hashes(x.detach().reshape(1, -1)))


def _gathered(flat: Tensor, ranks: int) -> list[Tensor]:
    """Return the gradients of every rank as they arrive here, in a collective of all ranks."""
    if ranks == 1:
        return [flat.clone()]
    gathered = [torch.empty_like(flat) for _ in range(ranks)]
    dist.all_gather(gathered, flat)
    return gathered


def _stored(model: nn.Module, file: Path, planted: "_Planted") -> list[int]:
    """Write the parameters to a file, read them back, and return the hashes of both."""
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
    torch.save(flat, file)
    again = torch.load(file, weights_only=True)
    file.unlink()
    planted.strike(Place.STORED, again, 0, 0)
    return [_hash(flat), _hash(again)]


class _Planted:
    """The bit flip that is injected into this rank, if any, to test that it is detected."""

    def __init__(self, flip: InjectedBitFlip | None) -> None:
        self._flip = flip

    def strike(self, place: Place, x: Tensor, step: int, copy: int) -> None:
        """Flip a bit of one element of a tensor if the fault is due at this place and step."""
        if self._due(place, step, copy):
            self._toggle(x, step)

    @contextlib.contextmanager
    def weight(self, model: nn.Module, step: int, copy: int) -> Iterator[None]:
        """Return a context in which a parameter has the flipped bit, if the fault is due."""
        parameters = list(model.parameters())
        if not self._due(Place.WEIGHT, step, copy):
            yield
            return
        self._toggle(parameters[step % len(parameters)].data, step)
        yield
        self._toggle(parameters[step % len(parameters)].data, step)

    @contextlib.contextmanager
    def activation(self, model: nn.Module, step: int, copy: int) -> Iterator[None]:
        """Return a context in which the middle block's output has the flipped bit, if it is due."""
        if not self._due(Place.ACTIVATION, step, copy):
            yield
            return
        blocks = parts(model)

        def flipped(_: nn.Module, __: object, output: Tensor) -> Tensor:
            """Return the output with a flipped bit; gradients pass through it unchanged."""
            changed = output.detach().clone()
            self._toggle(changed, step)
            return output + (changed - output.detach())

        handle = blocks[len(blocks) // 2].register_forward_hook(flipped)
        yield
        handle.remove()

    def _due(self, place: Place, step: int, copy: int) -> bool:
        """Return whether the flip is due at ``place`` in the computation, in this step and copy.

        ``copy`` is the index of a micro-batch among those that this rank computes in a step. Only
        the first one is affected, and two other ranks compute it without the flip.
        """
        flip = self._flip
        if flip is None or flip.place is not place:
            return False
        hit = place is Place.STORED or flip.step <= step < flip.step + flip.times
        return hit and copy == 0

    def _toggle(self, x: Tensor, step: int) -> None:
        """Flip the bit in one element of a tensor; the step determines which one."""
        assert self._flip is not None
        number = (step + 1) * 2654435761 % x.numel()
        with torch.no_grad():
            word = x.reshape(-1)[number : number + 1].clone().view(torch.int32)
            x.view(-1)[number : number + 1] = (word ^ (1 << self._flip.bit)).view(x.dtype)
