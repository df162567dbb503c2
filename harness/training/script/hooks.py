"""Install hooks that observe a training without a change of its code.

Optimizers call torch's global hooks around every step. Backward passes go through
``torch.autograd.backward``. The modules that a training calls directly are its *roots*. Until the
roots are known, during the first update cycles, the hooks see all calls of modules. After that they
see only calls of the roots' classes, so that inner modules cost nothing. No hook is attached to a
module itself, because copies and saved files of the module would contain it.
"""

import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
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
from harness.training.script.calls import Calls
from harness.training.script.flops import compiled
from harness.training.script.loaders import HandedBatch, Loaders
from harness.training.script.means import Means
from harness.training.script.prepared import Preparation, put
from harness.training.script.samples import BatchLayout
from harness.training.script.startup import write_guard


class Observer(Protocol):
    """The receiver of all events.

    ``key`` is the id of a root in ``Hooks.roots``, or of an optimizer in ``Hooks.optimizers``.
    """

    def passing(self) -> None:
        """Handle the start of a forward pass of the training, or of a backward pass without one."""

    def handed(self, batch: HandedBatch) -> None:
        """Handle a batch from a loader."""

    def called(
        self, key: int, what: BatchLayout, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        """Handle a root's call with samples.

        Calls in a repeated closure call of an optimizer step are left out.
        """

    def entered(self, key: int) -> None:
        """Handle a root's call with the outputs of another root."""

    def returned(self, output: object) -> None:
        """Handle the end of a root's call."""

    def enter_backward(self, losses: object, *, again: bool) -> None:
        """Handle the start of a backward pass.

        ``again`` is True if an optimizer has called its closure once more, as LBFGS does.
        """

    def leave_backward(self) -> None: ...

    def stepping(self, key: int, optimizer: Optimizer) -> None:
        """Handle the start of an optimizer step."""

    def stepped(self, key: int, optimizer: Optimizer) -> None:
        """Handle the end of an optimizer step."""


class Hooks:
    """The hooks on this process's training, which report to one observer.

    They remain until ``remove`` is called or the process ends.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.roots: dict[int, nn.Module] = {}
        self._loops: dict[int, nn.Module] = {}  # modules whose call is the whole training
        # steps of each optimizer during the open root's call
        self._steps_within: Counter[int] = Counter()
        self._given_nothing = False  # whether the open root was called without samples
        self._wrappers: dict[int, nn.Module] = {}  # for each root, the DDP module that calls it
        # current and earlier roots, and the modules that they wrap
        self._watched: dict[int, nn.Module] = {}
        self._open: nn.Module | None = None
        self._arrived: Tensor | None = None  # the open root's first tensor, until roots are known
        self._learning: dict[int, nn.Parameter | None] = {}  # one trainable parameter of each root
        self._sampled = set[int]()  # roots that are called with samples
        # roots whose inner layers show that the first dimension of samples is time
        self._late = set[int]()
        self._in_backward = 0
        self._in_step: list[int] = []  # running optimizer steps, the innermost last
        self._asked = 0  # number of backward passes within the running step
        self._prepared = Preparation()
        self.reads = self.evaluations = 0
        self.in_eval = False
        self.saved = set[str]()  # files that torch.save has written
        self.calls = Calls(self.updates)
        self.means = Means()
        self._trained = False  # whether weights were trained since the last optimizer step
        # a root that was called since then in eval mode, with gradients enabled
        self._evaluated: nn.Module | None = None
        self._evaluating: nn.Module | None = None
        self._passed = False  # whether a pass has begun since the last optimizer step
        self._between: Span | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self, prepared: Preparation | None = None) -> None:
        """Install all hooks. ``prepared`` holds the loaders and optimizers already made."""
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
        self._undo += self.calls.install() + self.means.install()

    def remove(self) -> None:
        """Remove all hooks; the training continues unobserved."""
        self._prepared.remove()
        while self._undo:
            self._undo.pop()()

    def _replace(self, place: Any, name: str, ours: object) -> None:
        """Replace one of torch's functions until the hooks are removed."""
        self._undo.append(put(place, name, ours))

    @property
    def loaders(self) -> Loaders:
        """Return the loaders of this process."""
        return self._prepared.loaders

    @property
    def optimizers(self) -> dict[int, Optimizer]:
        """Return the optimizers that were made or have stepped, by their ids."""
        return self._prepared.optimizers

    @property
    def seed(self) -> str:
        """Return the seed that was set before a model was made, or "" if none was set."""
        return self._prepared.seed

    @property
    def looking(self) -> bool:
        """Return whether the hooks are installed."""
        return bool(self._undo)

    @property
    def settled(self) -> bool:
        """Return whether the roots are known and the warm-up has ended."""
        return self._settled

    @property
    def wrapped(self) -> list[nn.Module]:
        """Return each root, or the DDP module around it if DDP's ``__call__`` was bypassed."""
        return [self._wrappers.get(key, root) for key, root in self.roots.items()]

    def trains(self) -> bool:
        """Return whether a root's call or a backward pass is running."""
        return bool(self._in_backward or self._open is not None)

    def updates(self) -> bool:
        """Return whether an optimizer step is running. It may also compute losses (LBFGS)."""
        return bool(self._in_step)

    def forget(self) -> None:
        """Forget all roots and optimizers that do not belong to the measured training."""
        self.roots.clear()
        self._wrappers.clear()
        self._sampled.clear()
        self._learning.clear()
        self.optimizers.clear()
        was_settled = self._settled
        self._settled = self._passed = False
        if not compiled():  # after compilation the hooks were never removed
            self._look_nowhere()
            self._look_nowhere = self._watch_calls(nn.Module)
            if was_settled:
                self._wrap_reads()

    def settle(self) -> None:
        """Watch only the roots from now on, and stop counting reads of single values."""
        self._settled = True
        self._arrived = None
        if not compiled():
            self._look_nowhere()
            self._count_no_reads()
            for kind in {type(module) for module in self._watched.values()}:
                self._undo.append(self._watch_calls(kind))

    def _look_no_more(self) -> None:
        """Stop watching the calls of modules.

        If torch has compiled something, the hooks stay in place and do nothing. If they were
        removed, torch would compile everything again.
        """
        self._settled = True
        self._watched.clear()
        if not compiled():
            self._look_nowhere()

    def _watch_calls(self, kind: type[nn.Module]) -> Callable[[], None]:
        """Wrap the calls of modules of this class, and return the function that unwraps them."""
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
            # A meta tensor belongs to a model that only counts its work and does not train.
            if not self._undo or getattr(tensors, "is_meta", False):
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

        # If a whole step is compiled, the hook must not be part of it. Otherwise every step would
        # be compiled again.
        self._replace(torch.autograd, "backward", torch.compiler.disable(watched))

    def _wrap_reads(self) -> None:
        """Count reads of single values.

        On a GPU each read waits until the device has computed the value. Reads inside an optimizer
        step are left out, because some optimizers read a number of each parameter.
        """
        item: Callable[..., Any] = Tensor.item
        ours = threading.get_ident()  # other threads are loaders, which read values in host memory

        @functools.wraps(item)
        def read(tensor: Tensor) -> Any:
            # A compiled function would contain the count as a constant.
            if not torch.compiler.is_compiling():
                of_loader = self.loaders.handing or threading.get_ident() != ours
                of_others = of_loader or self.calls.inside or self.means.unscaling
                self.reads += not (self._in_step or of_others)
            return item(tensor)

        self._count_no_reads = put(Tensor, "item", read)
        self._undo.append(self._count_no_reads)

    def _wrap_saves(self) -> None:
        """Record the files that ``torch.save`` writes.

        If all ranks write the same file, every rank waits for the disk, and the file may be
        damaged.
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
            begun_s = perf_counter()
            save(*args, **more)
            self.calls.saving_s += perf_counter() - begun_s

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
            self._forget_step(key)  # the optimizer's last step raised an error and never ended
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
            return  # the step of the optimizer's base class has already ended this step
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
        """Treat a module as a trainer, not as a model.

        A trainer is called without samples, and an optimizer steps repeatedly within its call.
        """
        self._loops[id(module)] = module
        self.roots.pop(id(module), None)
        self._watched.pop(id(module), None)
        self._open = None

    def _forget_step(self, key: int) -> None:
        """Remove this optimizer's step, and the steps within it, from the running steps."""
        if key in self._in_step:
            del self._in_step[self._in_step.index(key) :]

    def _passing(self) -> None:
        """Handle the start of a pass, which ends the time between two steps."""
        self._passed = True
        if self._between is not None:
            self._leave_between()
        self._observer.passing()

    def _leave_between(self) -> None:
        assert self._between is not None
        self._between.__exit__()
        self._between = None

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Handle the start of a watched call, and return whether its end must be handled, too."""
        # A backward pass may call inner modules again (checkpointing). They are not roots.
        if not self._settled and not self._in_backward:
            self._find(module, args)
        if id(module) not in self._watched:
            return False
        if id(module) in self.roots:
            self._call(module, args, kwargs)
            return True
        self._evaluate(module, args, kwargs)
        return False

    def _find(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Find out whether a called module is a root or a wrapper, until the roots are known."""
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
        """Record that the first dimension of a root's samples is time, if an inner layer shows it.

        Such a layer is recurrent or attention, gets the samples of the root, and has no
        ``batch_first``.
        """
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
            if self._evaluating is None:  # calls of a wrapped module belong to the same pass
                self._evaluating = module
            return
        self._open = module
        self._steps_within.clear()
        inner = getattr(module, "module", None)
        if isinstance(inner, nn.Module) and not inner.training:
            # The model is in eval mode. Only its wrapper, which computes nothing, is not.
            self._evaluated = inner
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
        """Return the samples of a root's call, or None if it gets the outputs of another root."""
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
        """Return the id of the root to which the samples of a call belong.

        It is the module's wrapper if the wrapper is a root, too. A script may call the wrapped
        model directly for some samples, such as the boundary of a differential equation.
        """
        for key in self._sampled:
            if getattr(self.roots.get(key), "module", None) is module:
                return key
        return id(module)

    def _freezes(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a call of a root cannot train anything.

        For example, a validation may need gradients of its inputs (forces from energies). It then
        freezes the parameters and leaves the model in training mode.
        """
        learning = self._learning.get(id(module))
        if learning is None or not learning.requires_grad:
            learning = next((p for p in inside.parameters(module) if p.requires_grad), None)
            self._learning[id(module)] = learning
        return learning is None and not samples.continues(args, kwargs)

    def _evaluate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Count a forward pass that trains nothing, even if it bypasses a wrapper."""
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
    """Return whether a call of the module belongs to a training."""
    return torch.is_grad_enabled() and module.training and _learns(module)


def _learns(module: nn.Module) -> bool:
    """Return whether the module has parameters that can be trained.

    A copy on the meta device has none. Some scripts count the work of such a copy before they train
    (litgpt).
    """
    return any(p.requires_grad and not p.is_meta for p in inside.parameters(module))
