"""The context that a strategy receives, the Trainer that it returns, and a case's loaded files."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from harness.base import programs
from harness.base.documents import Json
from harness.base.programs import PACKAGE
from harness.cases import Batching, CaseSpec, Dim, Mesh, Precision, Supports
from harness.cases.heads import NAMES, check_imported, facts, read_head
from harness.record import ExecutedModel
from harness.training import optimizers
from harness.training.data import Batch, set_seed
from harness.training.optimizers import note_outer
from harness.training.tuning.recompute import OnHost
from harness.training.tuning.tuned import tune

#: The dtype that autocast casts to, for each precision that uses autocast.
CAST = {Precision.AUTOCAST: torch.bfloat16, Precision.FP16: torch.float16}
#: Initial factor of the loss in fp16. It is so small that no gradient overflows in the first steps.
LOSS_SCALE = 2.0**12

#: The knobs of one file; each has the value that the case sets, or else its default.
Knobs: TypeAlias = Mapping[str, Json]


class Trainer(Protocol):
    """A built strategy. The rank process calls ``step``, and supplies batches and measurements."""

    def step(self, batch: Batch) -> Tensor | None:
        """Run one whole optimizer step and return the loss.

        Return None on a rank that does not compute the loss.
        """

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, gradient) of the last step.

        Gradients are unsharded, and names are the parameter names of the plain model.
        """

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, parameter) for the parameters that this rank trains.

        Parameters are unsharded, and names are the names of the plain model.
        """

    def ran(self) -> ExecutedModel:
        """Return the classes, tensor placements and schedule that were actually executed."""


def within(nodes: Sequence[int], rank: int) -> tuple[int, int]:
    """Return the local rank and the number of ranks on its node.

    ``nodes`` holds the number of ranks of each node. Raise ValueError if ``rank`` exceeds them.
    """
    for size in nodes:
        if rank < size:
            return rank, size
        rank -= size
    raise ValueError(f"the nodes have {sum(nodes)} ranks in all, too few for the given rank")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """The position of one rank in the world, and the functions that it trains with.

    ``shard`` is the index of this rank's part in every batch. ``sample`` takes a
    number of samples and returns their inputs on the meta device.
    """

    case: CaseSpec
    rank: int
    world_size: int
    device: torch.device
    batching: Batching
    loss: Callable[[Tensor, Tensor], Tensor]
    compressor: Compressor | None
    mesh: Mesh
    shard: int
    sample: Callable[[int], Tensor]

    @property
    def part(self) -> int:
        """The index of this rank's pipeline stage, or 0 if the model is not split by depth."""
        return self.mesh.place(self.rank, Dim.PP)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this rank; the first one is ``device``."""
        if self.device.index is None:
            return (self.device,)
        more = range(self.device.index, self.device.index + self.case.devices_per_rank)
        return tuple(torch.device(self.device.type, i) for i in more)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Enter the contexts of a forward pass: autocast, and offloading of activations.

        Strategies must run every forward pass inside it.
        """
        case = self.case
        dtype = CAST.get(self.case.precision)
        with contextlib.ExitStack() as stack:
            if dtype is not None:
                stack.enter_context(torch.autocast(self.device.type, dtype=dtype))
            if case.offload:
                stack.enter_context(OnHost())
            yield

    @property
    def loss_scale(self) -> float:
        """The initial factor by which the loss is scaled before backward; 1 except in fp16.

        A factor above 1 keeps small fp16 gradients from being rounded to zero.
        """
        return LOSS_SCALE if self.case.precision is Precision.FP16 else 1.0

    def gather(self, value: Any) -> list[Any]:
        """Return the values that all ranks passed, in rank order. This is a collective."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    @property
    def update(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """The class of the case's optimizer and its keyword arguments."""
        on_cpu = self.device.type == "cpu"
        return optimizers.chosen(self.case, self.batching.global_batch, on_cpu)

    def optimizer(
        self, parameters: Iterator[nn.Parameter], stages: dist.ProcessGroup | None = None
    ) -> torch.optim.Optimizer:
        """Return the case's optimizer for these parameters.

        ``stages`` is the group of the ranks that step the other parameters of the model. To clip
        by the norm of the whole model, the squared norms are added over this group.
        """
        kind, settings = self.update
        return optimizers.prepared(
            kind(optimizers.alike(parameters), **settings), self.case, stages
        )


@dataclass(frozen=True, kw_only=True)
class Compressor:
    """A compressor file with the knobs of one case.

    Steps before ``start`` are dense: they exchange uncompressed gradients.
    """

    name: str
    module: ModuleType
    knobs: Knobs
    start: int = 0

    @property
    def error_bound(self) -> float:
        """The bound on the relative error of a gradient that the compressor's file states."""
        return float(self.module.ERROR_BOUND)

    def promise(self, shapes: Sequence[torch.Size], world_size: int) -> Any:
        """Return the closed form of the bytes of one step, as a ``transports.Promise``."""
        return self.module.promise(shapes, world_size, self.knobs)

    def build(self, ctx: RankContext) -> Any:
        """Return a communication hook for DDP (a ``transports.Hook``).

        The hook compresses in every step. The caller handles the uncompressed steps before
        ``start``.
        """
        return self.module.build(ctx, self.knobs)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The modules that a case names. Only this class looks up the values of their knobs.

    ``layers`` overrides the number of layers of the model's size.
    """

    strategy: ModuleType
    model: ModuleType
    codec: ModuleType | None
    input: ModuleType
    layers: int | None = None

    @property
    def modules(self) -> Mapping[str, ModuleType]:
        """The modules by their kind: strategy, model, input and, if there is one, compressor."""
        modules = {"strategy": self.strategy, "model": self.model, "input": self.input}
        return modules if self.codec is None else {**modules, "compressor": self.codec}

    @property
    def supports(self) -> Supports:
        """The strategy's ``SUPPORTS``: the options it accepts, and the checks that apply to it."""
        return facts(Supports, self.strategy.SUPPORTS, self.strategy.__name__)

    @property
    def ships_strategy(self) -> bool:
        """Whether the strategy is one of this package's, and not a user's."""
        return _shipped(self.strategy)

    @property
    def ships_all(self) -> bool:
        """Whether all files of the case belong to this package, and none is a user's."""
        return all(map(_shipped, self.modules.values()))

    def knobs(self, case: CaseSpec) -> Knobs:
        """Return the strategy's knobs, with the values that the case sets."""
        return case.knobs_of(case.strategy, getattr(self.strategy, "KNOBS", {}))

    def size(self, case: CaseSpec) -> Mapping[str, Json]:
        """Return the model's knobs and the values of the case's size.

        A model file receives nothing else. If it knew the world size, for example, it could build
        a different model for each world size.
        """
        knobs = case.knobs_of(case.model, getattr(self.model, "KNOBS", {}))
        length = {} if case.seq_len is None else {"seq": case.seq_len}
        depth = {} if self.layers is None else {"layers": self.layers}
        return {**knobs, **self.model.SIZES[case.size], **length, **depth}

    def feed(self, source: Any, *, plain: bool = False) -> Callable[[int], Batch]:
        """Return the input's function that makes the batch of a step from this source.

        ``source`` is a ``feeds.Source``. If ``plain`` is set and the input defines ``plain``, that
        cheaper function makes the same batches.
        """
        case, make = source.ctx.case, self.input.feed
        knobs = case.knobs_of(case.data, getattr(self.input, "KNOBS", {}))
        make = getattr(self.input, "plain", make) if plain else make
        batch_of: Callable[[int], Batch] = make(source, knobs)
        return batch_of

    def at_once(self, case: CaseSpec) -> CaseSpec:
        """Return the case with the knobs that make a model with simulated compute not wait.

        Cases of other models are unchanged.
        """
        knobs = {
            f"{case.model}.{key}": value
            for key, value in getattr(self.model, "AT_ONCE", {}).items()
        }
        return replace(case, knobs={**case.knobs, **knobs})

    def compressor(self, case: CaseSpec) -> Compressor | None:
        """Return the compressor of the case, or None if it has none."""
        if self.codec is None or case.compressor is None:
            return None
        knobs = case.knobs_of(case.compressor, getattr(self.codec, "KNOBS", {}))
        start = int(self.knobs(case).get("start", 0))
        return Compressor(name=case.compressor, module=self.codec, knobs=knobs, start=start)

    def build(
        self,
        case: CaseSpec,
        ctx: RankContext,
        seed: int,
        watch: Callable[[nn.Sequential], None] = lambda model: None,
    ) -> Trainer:
        """Build the case's model with initial weights from ``seed``, and wrap it in the strategy.

        ``watch`` is called with the plain model before the strategy receives it.
        """
        with ctx.device:
            model = build_model(self, case, seed)
        watch(model)
        trainer: Trainer = self.strategy.build(model, ctx, self.knobs(case))
        return _seeding(trainer, case.seed)


def _seeding(trainer: Trainer, seed: int) -> Trainer:
    """Seed torch's generators in each step of a trainer, before the strategy's ``step`` runs."""
    step = trainer.step

    def seeded(batch: Batch) -> Tensor | None:
        set_seed(batch, seed)
        return step(batch)

    trainer.step = seeded  # type: ignore[method-assign]  # callers and strategies stay unaware
    return trainer


def load(files: Mapping[str, str]) -> Loaded:
    """Import the files of a case: files of the package by module name, a user's files by path."""
    loaded = {
        kind: _of_user(kind, Path(name)) if name.endswith(".py") else programs.load_module(name)
        for kind, name in files.items()
    }
    return Loaded(
        strategy=loaded["strategies"],
        model=loaded["models"],
        codec=loaded.get("compressors"),
        input=loaded["inputs"],
    )


def _of_user(kind: str, path: Path) -> ModuleType:
    """Return a module with the functions of a user's file and the head in its text.

    The head consists of the upper-case literals at the top of the file; plans were made from the
    text. Raise SpecError if the imported module has different values. The result is a copy, so the
    file cannot change it later.
    """
    imported = vars(programs.load_module(str(path)))
    check_imported(kind, path, imported)
    _, head = read_head(path)
    module = ModuleType(str(imported["__name__"]), imported["__doc__"])
    vars(module).update({n: v for n, v in imported.items() if n not in NAMES[kind]})
    vars(module).update({name: head[name] for name in NAMES[kind] if name in head})
    module.__file__ = str(path)
    return module


def build_model(loaded: Loaded, case: CaseSpec, seed: int) -> nn.Sequential:
    """Build the plain model with its initial weights on the current default device."""
    torch.manual_seed(seed)
    model = loaded.model.build(loaded.size(case))
    if not isinstance(model, nn.Module):
        where = f"{loaded.model.__file__}: build(size)"
        raise TypeError(f"{where} returned {type(model).__name__}, not an nn.Module")
    # The strategies that split these modules among ranks need to know their classes.
    for stated in ("CONTEXT", "EXPERTS", "TABLES"):
        setattr(model, stated.lower(), getattr(loaded.model, stated, None))
    if (tensor := getattr(loaded.model, "TENSOR", None)) is not None:
        model.tensor = {  # type: ignore[assignment]  # nn.Module accepts any attribute
            **tensor,
            "units": loaded.size(case)[tensor["units"]],
        }
    model.alike = alike(loaded.model)  # type: ignore[assignment]  # as above
    if case.precision is Precision.BF16:
        model = model.to(torch.bfloat16)
    note_outer(model)
    model.tuned = tune(model, case)  # type: ignore[assignment]  # as above
    return cast(nn.Sequential, model)  # another class works if the strategy does not split it


def alike(model_file: ModuleType) -> bool:
    """Return whether the blocks of a model file are identical.

    Only the model files of this package can declare this, with ``ALIKE``.
    """
    return _shipped(model_file) and bool(getattr(model_file, "ALIKE", False))


def _shipped(file: ModuleType) -> bool:
    """Return whether a file belongs to this package."""
    return Path(str(file.__file__)).is_relative_to(PACKAGE)


def parts(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return the parts that a model runs one after the other.

    The parts of an nn.Sequential are its children. Any other model is a single part.
    """
    return tuple(model.children()) if isinstance(model, nn.Sequential) else (model,)


def tensors_of(output: object) -> list[Tensor]:
    """Return the tensors of a model's output: a tensor, or a container or dataclass of tensors."""
    if dataclasses.is_dataclass(output):
        output = vars(output)
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


def own_batch(loaded: Loaded, ctx: RankContext, ids: Tensor, of: int = 0) -> Batch:
    """Return the batch of these samples on which a rank trains.

    ``of`` is the number of samples of all shards if the global batch is short, else 0. If ranks
    split the sequence, the batch holds only the positions of this rank.
    """
    shown = ids if len(ids) else ids.new_zeros(1)
    inputs, targets = loaded.model.batch(shown, loaded.size(ctx.case))
    return placed(loaded, ctx, Batch(ids=ids, inputs=inputs, targets=targets, of=of))


def placed(loaded: Loaded, ctx: RankContext, batch: Batch) -> Batch:
    """Move a batch to the device and keep only this rank's positions of the sequence.

    Inputs are converted to the model's dtype. Raise ValueError if the result of the strategy's
    function ``positions`` does not contain each position exactly once.
    """
    batch = on_device(ctx.case, batch, ctx.device)
    places = ctx.mesh.size(Dim.CP)
    if places == 1:
        return batch
    length = batch.inputs.shape[1]
    place = ctx.mesh.place(ctx.rank, Dim.CP)
    knobs = loaded.knobs(ctx.case)
    of_places = loaded.strategy.positions(knobs, length, places)
    if not torch.equal(torch.cat(of_places).sort().values, torch.arange(length)):
        file = loaded.strategy.__file__
        raise ValueError(
            f"{file}: positions({length}, {places}) do not contain each position exactly once"
        )
    positions = of_places[place].to(ctx.device)
    return replace(batch, inputs=batch.inputs[:, positions], targets=batch.targets[:, positions])


def make_batch(
    loaded: Loaded, case: CaseSpec, ids: Tensor, device: torch.device, of: int = 0
) -> Batch:
    """Return the batch with these sample ids on the device, with inputs in the model's dtype."""
    shown = ids if len(ids) else ids.new_zeros(1)
    inputs, targets = loaded.model.batch(shown, loaded.size(case))
    return on_device(case, Batch(ids=ids, inputs=inputs, targets=targets, of=of), device)


def on_device(case: CaseSpec, batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the device with inputs in the model's dtype.

    Copies from pinned memory are asynchronous.
    """
    inputs = batch.inputs
    pinned = device.type != "cpu" and batch.inputs.is_pinned()
    if case.precision is Precision.BF16 and inputs.is_floating_point():
        inputs = inputs.to(torch.bfloat16)
    return replace(
        batch,
        inputs=inputs.to(device, non_blocking=pinned),
        targets=batch.targets.to(device, non_blocking=pinned),
    )
