"""Hooks: how a training is seen without a change of its code.

Optimizers call global hooks of torch's around every step. Backward passes go through
``torch.autograd.backward``. The modules that a training calls itself, its *roots*, are found in the
first sentences, where all calls of modules come here; then those of the roots' classes alone do, so
that inner modules do not pay. A module itself has no hook: it would be in each copy and file of it.
"""

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from harness.record import Category
from harness.training.observe.spans import Span, span, tracing
from harness.training.script import inside, samples
from harness.training.script.flops import compiled
from harness.training.script.loaders import Loaders
from harness.training.script.prepared import Preparation, put
from harness.training.script.samples import BatchLayout
from harness.training.script.startup import write_guard


class Observer(Protocol):
    """Who is told. ``key`` is that of a root in ``Hooks.roots``, or of one in its optimizers."""

    def passing(self) -> None:
        """A forward pass of the training begins, or a backward pass that had none."""

    def handed(self, loader: int, size: int) -> None:
        """A loader hands out a batch of so many samples; 0 where nobody knows."""

    def called(
        self, key: int, what: BatchLayout, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """A root got samples of its own, and not once more within one optimizer step."""

    def entered(self, key: int) -> None:
        """A root got what another one has made of samples."""

    def returned(self, output: object) -> None:
        """A root has returned."""

    def enter_backward(self, losses: object, *, again: bool) -> None:
        """``again``: an optimizer asks its closure for a loss once more, as LBFGS does."""

    def leave_backward(self) -> None: ...

    def stepping(self, key: int, optimizer: Optimizer) -> None:
        """Before an optimizer step."""

    def stepped(self, key: int, optimizer: Optimizer) -> None:
        """After it."""


class Hooks:
    """Watches this process's training for one observer, until ``remove``, or the process's end."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.roots: dict[int, nn.Module] = {}
        self._loops: dict[int, nn.Module] = {}  # modules whose call is the whole training
        self._steps_within: Counter[int] = Counter()  # of each optimizer, in the root that is open
        self._given_nothing = False  # whether that was called with no samples
        self._wrappers: dict[int, nn.Module] = {}  # of a root: its DDP, whose forward() is called
        self._watched: dict[int, nn.Module] = {}  # roots, also those of before, and what they wrap
        self._open: nn.Module | None = None
        self._arrived: Tensor | None = None  # the open root's first tensor, until roots are known
        self._learning: dict[int, nn.Parameter | None] = {}  # one that trains, of each root
        self._sampled = set[int]()  # roots that are called with samples of their own
        self._late = set[int]()  # roots whose rows are steps in time, by what they call
        self._in_backward = 0
        self._in_step: list[int] = []  # optimizers whose steps are under way, the innermost last
        self._asked = 0  # backward passes within the step that is under way
        self._prepared = Preparation()
        self.reads = self.evaluations = 0
        self.in_eval = False
        self.saved = set[str]()  # files that torch.save has written
        self._trained = False  # whether weights were trained since the last optimizer step
        self._evaluated: nn.Module | None = None  # called since then in eval mode, with gradients
        self._evaluating: nn.Module | None = None
        self._passed = False  # whether a pass has begun since the last optimizer step
        self._between: Span | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self, prepared: Preparation | None = None) -> None:
        """Everything is watched from now on; what was ``prepared`` before is known."""
        self._prepared = prepared or self._prepared
        self.loaders.handed = self._observer.handed
        self._prepared.install()
        self._settled = False
        self._look_nowhere = self._watch_calls(nn.Module)
        self._undo.append(self._look_no_more)
        self._undo.append(register_optimizer_step_pre_hook(self._stepping).remove)
        self._undo.append(register_optimizer_step_post_hook(self._stepped).remove)
        self._wrap_backward()
        self._wrap_reads()
        self._wrap_saves()

    def remove(self) -> None:
        """The training goes on, and nobody looks at it any more."""
        self._prepared.remove()
        while self._undo:
            self._undo.pop()()

    def _replace(self, place: Any, name: str, ours: object) -> None:
        """Put a function of ours in the place of torch's, until nobody looks any more."""
        self._undo.append(put(place, name, ours))

    @property
    def loaders(self) -> Loaders:
        """The loaders of this process."""
        return self._prepared.loaders

    @property
    def optimizers(self) -> dict[int, Optimizer]:
        """The optimizers that were made or have stepped, by their ids."""
        return self._prepared.optimizers

    @property
    def seed(self) -> str:
        """The seed that was set before a model was made; empty if there is none."""
        return self._prepared.seed

    @property
    def looking(self) -> bool:
        """Whether they are installed, and not removed again."""
        return bool(self._undo)

    @property
    def settled(self) -> bool:
        """Whether the roots are known, and the warm-up is over."""
        return self._settled

    @property
    def wrapped(self) -> list[nn.Module]:
        """The roots in what exchanges their gradients, also where its own call was passed by."""
        return [self._wrappers.get(key, root) for key, root in self.roots.items()]

    def trains(self) -> bool:
        """Whether a root is called, or a backward pass is under way."""
        return bool(self._in_backward or self._open is not None)

    def updates(self) -> bool:
        """Whether an optimizer steps; it may ask for a loss meanwhile (LBFGS)."""
        return bool(self._in_step)

    def forget(self) -> None:
        """Forgets what was called and what stepped so far: it belongs to something else."""
        self.roots.clear()
        self._wrappers.clear()
        self._sampled.clear()
        self._learning.clear()
        self.optimizers.clear()
        was_settled = self._settled
        self._settled = self._passed = False
        if not compiled():  # else calls still come to us
            self._look_nowhere()
            self._look_nowhere = self._watch_calls(nn.Module)
            if was_settled:
                self._wrap_reads()

    def settle(self) -> None:
        """The roots are known: other modules are not looked at any more, and reads not counted."""
        self._settled = True
        self._arrived = None
        if not compiled():
            self._look_nowhere()
            self._count_no_reads()
            for kind in {type(module) for module in self._watched.values()}:
                self._undo.append(self._watch_calls(kind))

    def _look_no_more(self) -> None:
        """Calls do not come to us any more. Where torch has compiled something they still do, and
        nothing is done with them: if they went another way, torch would compile it all again.
        """
        self._settled = True
        self._watched.clear()
        if not compiled():
            self._look_nowhere()

    def _watch_calls(self, kind: type[nn.Module]) -> Callable[[], None]:
        """Calls of modules of this class come to us, until what is returned is called."""
        defined: Callable[..., Any] | None = vars(kind).get("__call__")

        @functools.wraps(kind.__call__)
        def watched(module: nn.Module, /, *args: Any, **kwargs: Any) -> Any:
            call: Callable[..., Any] = (
                cast(Any, super(kind, module)).__call__
                if defined is None
                else functools.partial(defined, module)
            )
            traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
            if traced or not self._enter(module, args, kwargs):
                return call(*args, **kwargs)
            output = None
            try:
                output = call(*args, **kwargs)
            finally:
                self._leave(module, output)
            return output

        return put(kind, "__call__", watched)

    def _wrap_backward(self) -> None:
        backward: Callable[..., Any] = torch.autograd.backward

        @functools.wraps(backward)
        def watched(tensors: Any, *args: Any, **more: Any) -> Any:
            if not self._undo or getattr(tensors, "is_meta", False):  # of one that only counts
                return backward(tensors, *args, **more)
            if not self._passed and not self._in_backward:
                self._passing()
            self._in_backward += 1
            again = bool(self._in_step and self._asked)
            self._observer.enter_backward(tensors, again=again)
            self._asked += 1
            try:
                if not tracing.on:
                    return backward(tensors, *args, **more)
                with span("backward"):
                    return backward(tensors, *args, **more)
            finally:
                self._in_backward -= 1
                self._observer.leave_backward()

        # where a whole step is compiled, what we do would be compiled with it, anew in each step
        self._replace(torch.autograd, "backward", torch.compiler.disable(watched))

    def _wrap_reads(self) -> None:
        """Reads of single values: on a GPU each waits until the device has come so far.

        Some optimizers read a number of each parameter: a hook there would cost most of all.
        """
        item: Callable[..., Any] = Tensor.item
        ours = threading.get_ident()  # threads of a loader read what lies on the host

        @functools.wraps(item)
        def read(tensor: Tensor) -> Any:
            if not torch.compiler.is_compiling():  # a number that grows would be compiled in
                of_loader = self.loaders.handing or threading.get_ident() != ours
                self.reads += not (self._in_step or of_loader)
            return item(tensor)

        self._count_no_reads = put(Tensor, "item", read)
        self._undo.append(self._count_no_reads)

    def _wrap_saves(self) -> None:
        """Files that are written: where all ranks write one, each waits for the disk, and none is
        sure to be whole.
        """
        for module in (torch, torch.jit):
            self._replace(module, "save", self._seen(module.save))

    def _seen(self, save: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(save)
        def seen(*args: Any, **more: Any) -> None:
            file = args[1] if len(args) > 1 else more.get("f")
            if isinstance(file, str | os.PathLike):
                write_guard.refuse(file)
                self.saved.add(os.path.relpath(file))
            save(*args, **more)

        return seen

    def _stepping(self, optimizer: Optimizer, *_: Any) -> None:
        if self._between is not None:
            self._leave_between()
        evaluated = self._evaluated
        if evaluated is not None and not self._trained and not self.in_eval:
            stepped = {
                id(parameter) for group in optimizer.param_groups for parameter in group["params"]
            }
            steps = any(id(parameter) in stepped for parameter in inside.parameters(evaluated))
            self.in_eval = steps and inside.differs_in_eval(evaluated)
        self._evaluated = None
        self._trained = False
        key = id(optimizer)
        self.optimizers[key] = optimizer
        self._observer.stepping(key, optimizer)
        if key in self._in_step:
            self._forget_step(key)  # it has raised, and never came to its end
        if not self._in_step:
            self._asked = 0
        self._in_step.append(key)
        if tracing.on:
            span("optimizer", Category.OPTIMIZER).__enter__()

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if tracing.on:
            span("optimizer", Category.OPTIMIZER).__exit__()
        key = id(optimizer)
        if key not in self._in_step:
            return  # its class calls its base's step, which has come to its end
        self._forget_step(key)
        self._passed = False
        self._observer.stepped(key, optimizer)
        if self._open is not None and self._given_nothing:
            self._steps_within[key] += 1
            if self._steps_within[key] > 1:
                self._is_a_loop(self._open)
        if not self._in_backward and not self._in_step and tracing.on:
            self._between = span("between steps", Category.DATA)
            self._between.__enter__()

    def _is_a_loop(self, module: nn.Module) -> None:
        """A module that is called with nothing, and in whose call an optimizer steps again and
        again, is no model, but a trainer.
        """
        self._loops[id(module)] = module
        self.roots.pop(id(module), None)
        self._watched.pop(id(module), None)
        self._open = None

    def _forget_step(self, key: int) -> None:
        """This optimizer's step, and those within it, are not under way any more."""
        if key in self._in_step:
            del self._in_step[self._in_step.index(key) :]

    def _passing(self) -> None:
        """Batches, logs and whatever else lies between two steps are over."""
        self._passed = True
        if self._between is not None:
            self._leave_between()
        self._observer.passing()

    def _leave_between(self) -> None:
        assert self._between is not None
        self._between.__exit__()
        self._between = None

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Before any call that comes to us; whether we want to know when it returns."""
        if not self._settled and not self._in_backward:  # there inner modules are called again
            self._find(module, args)
        if id(module) not in self._watched:
            return False
        if id(module) in self.roots:
            self._call(module, args, kwargs)
            return True
        self._evaluate(module, args, kwargs)
        return False

    def _find(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Of every module that is called, until the roots are known: whether it is one."""
        if self._open is not None:
            self._look_inside(self._open, module, args)
        elif _trains(module) and id(module) not in self._loops:
            self.roots.setdefault(id(module), module)
            self._watched[id(module)] = module
            if (wrapper := DistributedDataParallel._get_active_ddp_module()) is not None:
                self._wrappers[id(module)] = wrapper
            if isinstance(inner := getattr(module, "module", None), nn.Module):
                self._watched.setdefault(id(inner), inner)
        elif self._evaluated is None and torch.is_grad_enabled() and _learns(module):
            self._evaluated = module

    def _look_inside(self, root: nn.Module, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Time comes first in a root that passes its rows on to a layer that takes them so."""
        if not isinstance(module, nn.RNNBase | nn.MultiheadAttention) or module.batch_first:
            return
        given = args[0] if args else None
        came = self._arrived
        if not isinstance(given, Tensor) or given.dim() != 3 or came is None or came.dim() < 2:
            return
        if came.is_nested or given.is_nested:
            return
        if given.shape[:2] == came.shape[:2] and given.shape[0] != given.shape[1]:
            self._late.add(id(root))

    def _call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._open is not None or self._in_backward:
            return
        if not (torch.is_grad_enabled() and module.training) or self._freezes(module, args, kwargs):
            self._evaluate(module, args, kwargs)
            if self._evaluating is None:  # what it wraps is the same pass
                self._evaluating = module
            return
        self._open = module
        self._steps_within.clear()
        inner = getattr(module, "module", None)
        if isinstance(inner, nn.Module) and not inner.training:
            self._evaluated = inner  # its wrapper is in training mode, and computes nothing itself
        else:
            self._trained = True
        self.loaders.trained()
        if not self._settled:
            self._arrived = samples.first_input(args, kwargs)
        what = self._arriving(module, args, kwargs)
        if not self._passed:
            self._passing()
        if tracing.on:
            span("forward").__enter__()
        self._given_nothing = what is None
        if what is None:
            self._observer.entered(id(module))
        elif not (self._in_step and self._asked):
            self._observer.called(self._owner(module), what, args, kwargs)

    def _arriving(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> BatchLayout | None:
        """The samples that a call of a root brings; None where it goes on with another one's."""
        goes_on = id(module) not in self._sampled and samples.continues(args, kwargs)
        if goes_on and self._sampled:
            return None
        late = id(module) in self._late
        loaders = self.loaders
        what = samples.arrived(
            args, kwargs, loaders.sizes, late=late, batches=loaders.batches, made=not self._sampled
        )
        if what is not None:
            if not goes_on:
                self._sampled.add(id(module))
            loaders.came(what.count)
        return what

    def _owner(self, module: nn.Module) -> int:
        """The root whose samples a call brings: its wrapper, where that is called, too, as for the
        boundary of an equation past DistributedDataParallel.
        """
        for key in self._sampled:
            if getattr(self.roots.get(key), "module", None) is module:
                return key
        return id(module)

    def _freezes(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether nothing of a root can be trained now, nor by it: a validation that needs the
        gradients of its inputs (forces, of energies) freezes it, and leaves its mode alone.
        """
        learning = self._learning.get(id(module))
        if learning is None or not learning.requires_grad:
            learning = next((p for p in inside.parameters(module) if p.requires_grad), None)
            self._learning[id(module)] = learning
        return learning is None and not samples.continues(args, kwargs)

    def _evaluate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward pass that trains nothing, or looks like it; also past a wrapper."""
        inside = self._open is not None or self._evaluating is not None
        if inside or self._in_backward:
            return
        with_gradients = torch.is_grad_enabled()
        in_training = with_gradients and module.training
        if not in_training or self._freezes(module, args, kwargs):
            self.evaluations += 1
            self.loaders.evaluated()
            if with_gradients and not module.training:
                self._evaluated = module

    def _leave(self, module: nn.Module, output: object) -> None:
        if self._evaluating is module:
            self._evaluating = None
        if self._open is module:
            self._open = None
            if tracing.on:
                span("forward").__exit__()
            self._observer.returned(output)


def _trains(module: nn.Module) -> bool:
    """Whether a call of it belongs to a training."""
    return torch.is_grad_enabled() and module.training and _learns(module)


def _learns(module: nn.Module) -> bool:
    """Whether it has parameters that can be trained; a copy without data, whose work is counted
    before the training (litgpt's), has none.
    """
    return any(p.requires_grad and not p.is_meta for p in inside.parameters(module))
