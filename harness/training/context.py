"""The arguments of a strategy, and the two things it returns: expectations and a Trainer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.base import programs
from harness.base.documents import Json
from harness.base.programs import PACKAGE
from harness.cases import Batching, CaseSpec, Dim, Mesh, Precision, Supports
from harness.cases.heads import NAMES, check_imported, facts, read_head
from harness.record import ExecutedModel
from harness.training import optimizers
from harness.training.data import Batch
from harness.training.optimizers import note_outer
from harness.training.tuning.recompute import OnHost
from harness.training.tuning.tuned import tune

#: What autocast casts to.
CAST = {Precision.AUTOCAST: torch.bfloat16, Precision.FP16: torch.float16}
#: Small enough that the first steps overflow nowhere.
LOSS_SCALE = 2.0**12

#: The knobs of one file, each with its default or the case's value.
Knobs: TypeAlias = Mapping[str, Json]


class Trainer(Protocol):
    """A built strategy. The worker owns everything around ``step``."""

    def step(self, batch: Batch) -> Tensor | None:
        """One whole optimizer step; the loss, or None on a rank that does not compute it."""

    def gradients(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded gradients of the last step, by the plain model's parameter names."""

    def parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Unsharded parameters that this rank trains, by the plain model's names."""

    def ran(self) -> ExecutedModel:
        """Classes, placements and schedule, observed."""


def within(nodes: Sequence[int], rank: int) -> tuple[int, int]:
    """A rank's place among those of its node, and how many these are."""
    for size in nodes:
        if rank < size:
            return rank, size
        rank -= size
    raise ValueError(f"there are {sum(nodes)} ranks on all nodes")


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """One rank's place in the world and the functions it trains with.

    ``shard`` is the part of every batch that is this rank's; ``sample`` makes the inputs of so many
    samples on the meta device.
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
        """Which part of the model is this rank's, where its depth is cut."""
        return self.mesh.place(self.rank, Dim.PP)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All devices of this rank; ``device`` is the first of them."""
        if self.device.index is None:
            return (self.device,)
        more = range(self.device.index, self.device.index + self.case.devices_per_rank)
        return tuple(torch.device(self.device.type, i) for i in more)

    @contextlib.contextmanager
    def forward(self) -> Iterator[None]:
        """Around every forward pass: autocast, and where its activations are kept."""
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
        """The factor of losses before backward, so that small gradients are no zeros."""
        return LOSS_SCALE if self.case.precision is Precision.FP16 else 1.0

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, in rank order."""
        if self.world_size == 1:
            return [value]
        gathered: list[Any] = [None] * self.world_size
        dist.all_gather_object(gathered, value)
        return gathered

    @property
    def update(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """The optimizer's class and its settings."""
        on_cpu = self.device.type == "cpu"
        return optimizers.chosen(self.case, self.batching.global_batch, on_cpu)

    def optimizer(
        self, parameters: Iterator[nn.Parameter], stages: dist.ProcessGroup | None = None
    ) -> torch.optim.Optimizer:
        """The case's, for these parameters; ``stages`` are the ranks that step all others."""
        kind, settings = self.update
        return optimizers.prepared(
            kind(optimizers.alike(parameters), **settings), self.case, stages
        )


@dataclass(frozen=True, kw_only=True)
class Compressor:
    """A compressor's file with the knobs of a case settled. Steps before ``start`` are dense."""

    name: str
    module: ModuleType
    knobs: Knobs
    start: int = 0

    @property
    def error_bound(self) -> float:
        """The relative error of a gradient that it states for itself."""
        return float(self.module.ERROR_BOUND)

    def promise(self, shapes: Sequence[torch.Size], world_size: int) -> Any:
        """Bytes in closed form, ``hooks.Promise``."""
        return self.module.promise(shapes, world_size, self.knobs)

    def build(self, ctx: RankContext) -> Any:
        """A communication hook for DDP, ``hooks.Hook``, from the first step on."""
        return self.module.build(ctx, self.knobs)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """The modules that a case names; knobs are settled here and nowhere else.

    With ``layers`` the model is one of so many, whatever its size says.
    """

    strategy: ModuleType
    model: ModuleType
    codec: ModuleType | None
    input: ModuleType
    layers: int | None = None

    @property
    def modules(self) -> Mapping[str, ModuleType]:
        """The modules of one kind, by the word for it."""
        modules = {"strategy": self.strategy, "model": self.model, "input": self.input}
        return modules if self.codec is None else {**modules, "compressor": self.codec}

    @property
    def supports(self) -> Supports:
        return facts(Supports, self.strategy.SUPPORTS, self.strategy.__name__)

    def knobs(self, case: CaseSpec) -> Knobs:
        return case.knobs_of(case.strategy, getattr(self.strategy, "KNOBS", {}))

    def size(self, case: CaseSpec) -> Mapping[str, Json]:
        """The model's knobs and the figures of the case's size: all that a model is told.

        A model that knew the world or the mode could be another one there.
        """
        knobs = case.knobs_of(case.model, getattr(self.model, "KNOBS", {}))
        length = {} if case.seq_len is None else {"seq": case.seq_len}
        depth = {} if self.layers is None else {"layers": self.layers}
        return {**knobs, **self.model.SIZES[case.size], **length, **depth}

    def feed(self, source: Any, *, plain: bool = False) -> Callable[[int], Batch]:
        """The case's input, with batches of this source (``feeds.Source``).

        ``plain``: those batches, by whatever way, if the input has one that costs less.
        """
        case, make = source.ctx.case, self.input.feed
        knobs = case.knobs_of(case.data, getattr(self.input, "KNOBS", {}))
        make = getattr(self.input, "plain", make) if plain else make
        batch_of: Callable[[int], Batch] = make(source, knobs)
        return batch_of

    def at_once(self, case: CaseSpec) -> CaseSpec:
        """The case with a model that does not wait, if it is one that does."""
        knobs = {
            f"{case.model}.{key}": value
            for key, value in getattr(self.model, "AT_ONCE", {}).items()
        }
        return replace(case, knobs={**case.knobs, **knobs})

    def compressor(self, case: CaseSpec) -> Compressor | None:
        """The compressor of the case, if it has one."""
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
        """The case's model with initial weights of that seed, under its strategy.

        ``watch`` sees the plain model before the strategy does.
        """
        with ctx.device:
            model = build_model(self, case, seed)
        watch(model)
        trainer: Trainer = self.strategy.build(model, ctx, self.knobs(case))
        return trainer


def load(files: Mapping[str, str]) -> Loaded:
    """Import the files of a case: the package's by module name, a user's by path."""
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
    """The functions of a user's file with the head of its text: what plans and people have read.

    SpecError where the two say different things. Whatever the file changes in its own module, or
    its module's class says, later on changes nothing here.
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
    """The plain model with its initial weights, on the current default device."""
    torch.manual_seed(seed)
    model = loaded.model.build(loaded.size(case))
    if not isinstance(model, nn.Module):
        where = f"{loaded.model.__file__}: build(size)"
        raise TypeError(f"{where} returned {type(model).__name__}, not an nn.Module")
    for stated in ("CONTEXT", "EXPERTS", "TABLES"):  # of which modules a mesh may ask for more
        setattr(model, stated.lower(), getattr(loaded.model, stated, None))
    if (tensor := getattr(loaded.model, "TENSOR", None)) is not None:
        model.tensor = {  # type: ignore[assignment]  # what nn.Module may hold, too
            **tensor,
            "units": loaded.size(case)[tensor["units"]],
        }
    model.alike = alike(loaded.model)  # type: ignore[assignment]  # as above
    if case.precision is Precision.BF16:
        model = model.to(torch.bfloat16)
    note_outer(model)
    model.tuned = tune(model, case)  # type: ignore[assignment]  # as above
    return cast(nn.Sequential, model)  # or another module, where nothing needs its parts


def alike(model_file: ModuleType) -> bool:
    """Whether a model file's blocks are equal, as a shipped one may say."""
    shipped = Path(str(model_file.__file__)).is_relative_to(PACKAGE)
    return shipped and bool(getattr(model_file, "ALIKE", False))


def parts(model: nn.Module) -> tuple[nn.Module, ...]:
    """Parts that a model runs one after the other: the blocks of a sequence, or else all of it."""
    return tuple(model.children()) if isinstance(model, nn.Sequential) else (model,)


def own_batch(loaded: Loaded, ctx: RankContext, ids: Tensor, of: int = 0) -> Batch:
    """The batch of these samples that a rank is handed; a short one if ``of`` is how many it has.

    Where the sequence is cut, the part that is its own: the strategy's file says which in
    ``positions``.
    """
    shown = ids if len(ids) else ids.new_zeros(1)
    inputs, targets = loaded.model.batch(shown, loaded.size(ctx.case))
    return placed(loaded, ctx, Batch(ids=ids, inputs=inputs, targets=targets, of=of))


def placed(loaded: Loaded, ctx: RankContext, batch: Batch) -> Batch:
    """A batch as the model takes it, on the device, and this rank's part of the sequence."""
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
        raise ValueError(f"{file}: positions({length}, {places}) are not each position once")
    positions = of_places[place].to(ctx.device)
    return replace(batch, inputs=batch.inputs[:, positions], targets=batch.targets[:, positions])


def make_batch(
    loaded: Loaded, case: CaseSpec, ids: Tensor, device: torch.device, of: int = 0
) -> Batch:
    """The content of these sample ids, on the device, inputs in the model's dtype."""
    shown = ids if len(ids) else ids.new_zeros(1)
    inputs, targets = loaded.model.batch(shown, loaded.size(case))
    return on_device(case, Batch(ids=ids, inputs=inputs, targets=targets, of=of), device)


def on_device(case: CaseSpec, batch: Batch, device: torch.device) -> Batch:
    """A batch with inputs in the model's dtype; from pinned memory nobody waits for the copy."""
    inputs = batch.inputs
    pinned = device.type != "cpu" and batch.inputs.is_pinned()
    if case.precision is Precision.BF16 and inputs.is_floating_point():
        inputs = inputs.to(torch.bfloat16)
    return replace(
        batch,
        inputs=inputs.to(device, non_blocking=pinned),
        targets=batch.targets.to(device, non_blocking=pinned),
    )
