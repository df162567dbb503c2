"""Record what the hooks observe of a training: its update cycles, samples, losses and times.

A root is a module that the training calls directly (``hooks.py``). The code of the hooks is brief,
because it is not in the CPU's caches when a hook runs: each function that it calls costs
microseconds.
"""

import functools
import hashlib
import itertools
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from time import perf_counter, time_ns
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from harness.training.observe import tensor_values
from harness.training.observe.intake import digest
from harness.training.script import inside, modes
from harness.training.script.hooks import Hooks
from harness.training.script.loaders import HandedBatch
from harness.training.script.samples import ELEMENTS, BatchLayout, Rows, inputs, tensors, trains
from harness.training.script.sentences import StepSequence
from harness.training.script.sketches import sketch

_LOSSES = 1024
#: Number of latest forward passes whose times are stored. They cover a step or more.
FORWARDS = 64
#: A record quotes at most this number of characters of an error message of a user's object.
REASON = 120


class Digests(NamedTuple):
    """Digests of parameters, and random sums of some of their elements.

    ``whole`` covers all parameters. It does not depend on wrappers, the order of calls or the names
    of parts, and is empty if there are no parameters. ``parts`` maps the name of each part to its
    digest. ``sums`` holds the random sums (``sketches.py``).
    """

    whole: str = ""
    parts: Mapping[str, str] = MappingProxyType({})
    sums: tuple[float, ...] = ()


def _joined(digests: Iterable[str]) -> str:
    lines = "\n".join(digests)
    return hashlib.sha256(lines.encode()).hexdigest()[:16] if lines else ""


class Observed:
    """The observer that the hooks call.

    It calls ``mark`` whenever an update cycle begins, which is the end of the previous cycle.
    """

    def __init__(self) -> None:
        self.hooks = Hooks(self)
        self.forget()

    def forget(self) -> None:
        """Forget all observations so far."""
        self.sentences = StepSequence()
        self.looking = True  # whether samples of this update cycle are hashed and not only counted
        self.ahead_s: dict[int, float] = {}  # by update cycle, the time before backward passes
        # seconds so far in batches, forward passes, backward passes and optimizer steps
        self.batches_s = self.forward_s = self.backward_s = self.optimizer_s = 0.0
        self.passes_begun = 0  # number of passes over loaders so far
        self._backward_since_s = self._optimizer_since_s = 0.0
        #: For each of the last forward passes, the id of its root, its start and its end.
        self.forwards_ns = deque[tuple[int, int, int]](maxlen=FORWARDS)
        self._called = 0  # id of the root whose forward pass is running
        self._called_ns = 0  # start of that forward pass
        self._within = False  # whether a backward pass is running within that root's call
        self._free_s = 0.0  # time when the last pass or update ended
        self.rows: dict[int, Rows] = {}
        # for each loader and update cycle, the number of samples that the loader handed out
        self._drawn: dict[int, dict[int, int]] = {}
        self.unclear = ""
        self._unread = False
        self.searched = self.random = False
        self.cleared: bool | None = None  # set by the first update with several backward passes
        self._drew: list[Tensor] = []
        self._undo: Callable[[], None] | None = None  # removes the rows of the running call
        self.dtype = ""
        self.graded = set[int]()  # ids of parameters that had gradients in the warm-up
        self.modes = set[str]()  # debugging modes that were on in a backward pass of the warm-up
        self.uncleared = False
        self._stepped_with: list[Tensor] = []  # some elements of gradients at the first update
        self._kept = False  # whether these elements are unchanged when the next update begins
        # learning rates at updates 1, 2, 4, 8, ...
        self.rates_at: list[tuple[float | Tensor, ...]] = []
        self.norm2 = 0.0
        self._normed = set[int]()  # ids of the parameters whose gradients ``norm2`` includes
        # trained parameters that belong to no root, so that no wrapper exchanges their gradients
        self.loose: dict[int, Tensor] = {}
        self.updates: list[list[Tensor]] = []  # for each inspected update, which elements changed
        self._stepped_from: dict[int, list[Tensor]] = {}
        self._losses_on_cpu: list[tuple[int, float]] = []  # (update cycle, loss)
        # losses on an accelerator, which are read only at the end, so that no step waits for them
        self._losses: Tensor | None = None
        self._lost_in: list[int] = []  # the update cycle of each of these losses

    def restart(self) -> None:
        """Forget all observations, because ``measured`` or ``measure_steps`` was entered."""
        self.forget()
        self.hooks.forget()

    @abstractmethod
    def mark(self) -> None: ...

    def passing(self) -> None:
        self.hooks.calls.passing()
        if self.sentences.passing():
            self.mark()
            self.looking = self.looks()

    def looks(self) -> bool:
        """Return whether samples are hashed in the update cycle that begins."""
        return True

    def handed(self, batch: HandedBatch) -> None:
        self.batches_s += batch.took_s
        self.passes_begun += batch.first
        sentence = self.sentences.done  # a batch drawn after an update belongs to the next cycle
        of_loader = self._drawn.setdefault(batch.loader, {})
        of_loader[sentence] = of_loader.get(sentence, 0) + batch.size

    @property
    def drawn(self) -> Mapping[int, int]:
        """Map each update cycle to the number of samples that loaders handed out for training."""
        sums: Counter[int] = Counter()
        for loader, by_sentence in self._drawn.items():
            if self.hooks.loaders.trains(loader):
                sums.update(by_sentence)
        return sums

    def called(
        self, key: int, what: BatchLayout, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        sentence = len(self.sentences.words)
        of_root = self.rows.get(key) or self.rows.setdefault(key, Rows())
        of_root.count(sentence, what)
        self.unclear = self.unclear or what.unclear
        noted = bool(what.count) and self.looking and not self._unread
        if noted:
            try:
                of_root.note(sentence, inputs(args, kwargs, what))
            except Exception as error:  # a user-defined tensor class may raise any error
                noted, self._unread = False, True
                reason = f"{type(error).__name__}: {error}".partition("\n")[0][:REASON]
                self.unclear = f"the inputs of the model cannot be read ({reason})"
        self._undo = functools.partial(of_root.take_back, sentence, what.count, noted=noted)
        if not sentence:
            self._drew = self._generators()
        self.entered(key)

    def entered(self, key: int) -> None:
        """Record the start of a root's call, with samples or with the outputs of another root."""
        self._called = key
        self._called_ns = time_ns()

    def returned(self, output: object) -> None:
        self._close_forward()
        if self._undo is not None and trains(output) is False:
            # The call trained nothing. For example, a policy computed values without gradients.
            self._undo()
        self._undo = None
        if not self.dtype:
            computed = (x for x in tensors(output) if x.is_floating_point() or x.is_complex())
            first = next(computed, None)
            self.dtype = "" if first is None else str(first.dtype).removeprefix("torch.")
        if self._drew:
            pairs = zip(self._drew, self._generators(), strict=True)
            self.random |= any(not torch.equal(before, after) for before, after in pairs)
            self._drew = []

    def _close_forward(self) -> None:
        if self._called_ns:  # zero in repeated closure calls of an optimizer
            ended_ns = time_ns()
            self.forwards_ns.append((self._called, self._called_ns, ended_ns))
            self.forward_s += (ended_ns - self._called_ns) / 1e9
            self._called_ns = 0

    def _generators(self) -> list[Tensor]:
        """Return the states of the random generators that forward passes draw from."""
        states = [torch.get_rng_state()]
        for device in {parameter.device for parameter in self.parameters()} - {torch.device("cpu")}:
            states.append(torch.get_device_module(device).get_rng_state(device))
        return states

    def enter_backward(self, losses: object, *, again: bool) -> None:
        self._undo = None  # keep the rows: the root trains within its call
        if not self.hooks.settled:
            self.modes |= modes.debugging()
        if self.cleared is None and self.sentences.accumulates:
            gradients = (p.grad for p in self.parameters() if p.grad is not None)
            self.cleared = not any(
                bool(x.any()) for g in gradients for x in tensor_values.pieces(g)
            )
        if len(self.sentences.words) in (1, 2) and not self.sentences.backwards:
            self._look_for_old_gradients()
        self._within = self._within or self._called_ns > 0
        self._close_forward()
        self.sentences.enter_backward(again=again)
        self.hooks.means.passes(losses)
        self.hooks.calls.enter_backward()
        if isinstance(losses, Tensor) and losses.numel() == 1 and losses.is_floating_point():
            self._note(tensor_values.local(losses).detach())
        self._backward_since_s = self._backward_since_s or perf_counter()
        if self._free_s:
            sentence = len(self.sentences.words)
            before_s = perf_counter() - self._free_s
            self.ahead_s[sentence] = self.ahead_s.get(sentence, 0.0) + before_s
            self._free_s = 0.0  # time before passes inside this one is not counted again

    def leave_backward(self) -> None:
        self.sentences.leave_backward()
        if self._within and not self.sentences.in_backward:
            self.entered(self._called)  # the call of the enclosing root continues
            self._within = False
        # Each backward pass is inspected, because parts may train in turn, as in GANs.
        if not self.hooks.settled:
            self.graded |= {id(p) for p in self.parameters() if p.grad is not None}
        self._free_s = perf_counter()
        if not self.sentences.in_backward:
            self.backward_s += self._free_s - self._backward_since_s
            self._backward_since_s = 0.0

    def stepping(self, key: int, optimizer: Optimizer) -> None:
        self._optimizer_since_s = perf_counter()
        if not self.sentences.words:
            self._look_at_gradients(optimizer)
            self._look_beside_roots(optimizer)
        if len(self.sentences.words) + 1 == 2 ** len(self.rates_at):
            self.rates_at.append(self.rates())
        if self.looking:
            self._stepped_from[key] = [part.clone() for part in _some_elements(optimizer)]

    def stepped(self, key: int, optimizer: Optimizer) -> None:
        if before := self._stepped_from.pop(key, None):
            pairs = zip(before, _some_elements(optimizer), strict=False)
            self.updates.append([(a != b).any() for a, b in pairs])
        self.sentences.stepped(key)
        self._free_s = perf_counter()
        self.optimizer_s += self._free_s - self._optimizer_since_s

    def rates(self) -> tuple[float | Tensor, ...]:
        """Return copies of the current learning rates of all parameter groups.

        A tensor is not read here, because a read fails while a CUDA graph is captured.
        """
        groups = (
            group
            for optimizer in self.hooks.optimizers.values()
            for group in optimizer.param_groups
        )
        values = (group["lr"] for group in groups if "lr" in group)
        return tuple(v.clone() if isinstance(v, Tensor) else float(v) for v in values)

    def parameters(self) -> list[nn.Parameter]:
        """Return the parameters of all roots, each once, except those on the meta device."""
        by_id = {
            id(parameter): parameter
            for root in self.hooks.roots.values()
            for parameter in inside.parameters(root)
            if not parameter.is_meta and not tensor_values.freed(parameter)
        }
        return list(by_id.values())

    def bits(self) -> Digests:
        """Return digests of the trained parameters, or of this rank's shards of them.

        The trained parameters are those of the roots. If an optimizer steps any of them, its other
        parameters are included, too, even if this rank does not call their modules.
        """
        parameters: dict[int, Tensor] = {id(p): p for p in self.parameters()}
        for stepped in self._stepped():
            if not parameters.keys().isdisjoint(stepped):
                parameters |= stepped
        of_each = {key: digest(iter([parameter])) for key, parameter in parameters.items()}
        parts = inside.by_part(list(self.hooks.roots.values()))
        of_parts = {
            name: _joined(of_each[id(parameter)] for parameter in part if id(parameter) in of_each)
            for name, part in parts.items()
        }
        return Digests(_joined(sorted(of_each.values())), of_parts, sketch(self.parameters()))

    def bits_alone(self) -> Digests:
        """Return digests of the stepped tensors if none belongs to a root, else empty digests."""
        of_roots = {id(parameter) for parameter in self.parameters()}
        by_id = {key: tensor for stepped in self._stepped() for key, tensor in stepped.items()}
        if not of_roots.isdisjoint(by_id) or not by_id:
            return Digests()
        whole = _joined(sorted(digest(iter([tensor])) for tensor in by_id.values()))
        return Digests(whole, {}, sketch(by_id.values()))

    def _stepped(self) -> Iterator[dict[int, Tensor]]:
        """Yield, for each optimizer, its parameters by their ids."""
        for optimizer in self.hooks.optimizers.values():
            trained = (p for group in optimizer.param_groups for p in group["params"])
            held = (p for p in trained if not p.is_meta and not is_lazy(p))
            yield {id(p): p for p in held if not tensor_values.freed(p)}

    def losses(self, first: int, last: int) -> np.ndarray:
        """Return the losses of the update cycles from ``first`` to ``last`` (exclusive).

        The loss of a cycle is the sum of the tensors with which its backward passes began, or NaN
        if there were none.
        """
        losses = np.full(last - first, np.nan)
        values = [] if self._losses is None else self._losses.cpu().tolist()
        late = zip(self._lost_in, values, strict=False)
        for sentence, value in itertools.chain(self._losses_on_cpu, late):
            if first <= sentence < last:
                losses[sentence - first] = np.nan_to_num(losses[sentence - first]) + value
        return losses

    def _look_at_gradients(self, optimizer: Optimizer) -> None:
        """Add the squared norm of an optimizer's gradients before the first step to ``norm2``.

        If gradients are sharded, only this rank's shard is included. Also record whether DDP
        searches for unused parameters although each parameter has a gradient.
        """
        for root in self.hooks.wrapped:
            if getattr(root, "find_unused_parameters", False):
                wanted = [
                    parameter for parameter in inside.parameters(root) if parameter.requires_grad
                ]
                self.searched = all(parameter.grad is not None for parameter in wanted)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in self._normed:
                    self._normed.add(id(parameter))
                    grad = (
                        parameter.grad.to_local()
                        if hasattr(parameter.grad, "to_local")
                        else parameter.grad
                    )
                    self.norm2 += float(grad.detach().double().square().sum())
        if len(self.hooks.optimizers) == 1:
            elements = _some_elements(optimizer, of_gradients=True)
            self._stepped_with = [part.clone() for part in elements]

    def _look_for_old_gradients(self) -> None:
        """Record whether an update begins with the gradients of the previous update.

        With several optimizers nothing is recorded, because a second one may clear its gradients
        later. Gradients that have changed since the previous update do not count, because the
        script keeps them on purpose (PowerSGD's error feedback).
        """
        if len(self.hooks.optimizers) == 1:
            (optimizer,) = self.hooks.optimizers.values()
            trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
            if trained.isdisjoint(map(id, self.parameters())):
                return  # the optimizer steps copies, and the script sets their gradients
            there = _some_elements(optimizer, of_gradients=True)
            if len(self.sentences.words) == 1:
                pairs = zip(there, self._stepped_with, strict=False)
                self._kept = bool(there) and all(torch.equal(now, then) for now, then in pairs)
            self.uncleared = self._kept and any(bool(elements.any()) for elements in there)

    def unstepped(self) -> list[str]:
        """Return the parts of the roots that get gradients but belong to no optimizer.

        The list is empty if the optimizers have less than half of the parameters with gradients. An
        optimizer then has copies of these parameters.
        """
        groups = [g for optimizer in self.hooks.optimizers.values() for g in optimizer.param_groups]
        stepped = {id(parameter) for group in groups for parameter in group["params"]}
        if 2 * len(self.graded & stepped) < len(self.graded):
            return []
        parts = inside.by_part(list(self.hooks.roots.values()))
        missing = self.graded - stepped
        return [name for name, part in parts.items() if any(id(p) in missing for p in part)]

    def _look_beside_roots(self, optimizer: Optimizer) -> None:
        """Watch for parameters that train together with those of the roots, but belong to no root.

        Such a parameter is recorded when a backward pass reaches it. A backward pass never reaches
        tensors that an optimizer creates for itself, such as a master copy or a shard. Parameters
        of a separate optimizer are ignored, because they may differ between ranks (for example, an
        adversarial perturbation of samples).
        """
        of_roots = {id(parameter) for parameter in self.parameters()}
        trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        beside = [parameter for parameter in trained if id(parameter) not in of_roots]
        for parameter in beside if len(beside) < len(trained) else ():
            if parameter.is_leaf and parameter.requires_grad:
                self._note_once_reached(parameter)

    def _note_once_reached(self, parameter: Tensor) -> None:
        def reached(leaf: Tensor) -> None:
            handle.remove()
            if self.hooks.looking:
                self.loose[id(leaf)] = leaf

        handle = parameter.register_post_accumulate_grad_hook(reached)

    def _note(self, loss: Tensor) -> None:
        """Store a loss as a number if it is on the CPU, else in one tensor on its device.

        Reading a loss from an accelerator would wait for the device (see ``window.StepLog``).
        """
        sentence = len(self.sentences.words)
        if loss.is_cpu:
            self._losses_on_cpu.append((sentence, float(loss)))
            return
        if self._losses is None:
            self._losses = torch.zeros(_LOSSES, dtype=torch.float64, device=loss.device)
        if len(self._lost_in) == len(self._losses):
            self._losses = torch.cat([self._losses, torch.zeros_like(self._losses)])
        self._losses[len(self._lost_in)] = loss.reshape(())
        self._lost_in.append(sentence)


def _some_elements(optimizer: Optimizer, *, of_gradients: bool = False) -> list[Tensor]:
    """Return views of some elements of up to three parameters that an optimizer trains.

    With ``of_gradients``, return elements of the gradients of these parameters instead.
    """
    trained = [
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and tensor_values.local(parameter).numel()
    ]
    few = {id(p): p for p in (*trained[:1], *trained[len(trained) // 2 :][:1], *trained[-1:])}
    return [_first_elements(p.grad if of_gradients else p) for p in few.values()]


def _first_elements(tensor: Tensor) -> Tensor:
    """Return at most ``ELEMENTS`` elements of a tensor, or of this rank's shard of it."""
    part = tensor_values.bits(tensor_values.local(tensor))
    return (part if part.is_contiguous() else part[0]).flatten()[:ELEMENTS]
