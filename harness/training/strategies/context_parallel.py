"""Context parallel: the sequence is split among the ranks.

Attention needs the keys of all parts. An all-gather, Ulysses' all-to-alls, or a ring exchanges
them.
"""

import fnmatch
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from harness.cases import Batching, CaseSpec, Dim
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext
from harness.training.parallel import attention, data_parallel, groups, traffic, width
from harness.training.parallel.traffic import Traffic
from harness.training.trainer import LocalTrainer, element_bytes, training_bytes

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("cp", "dp", "fsdp", "tp"),
    compiles=False, replicas=True, needs=("CONTEXT",), precisions=("fp32", "bf16"),
    products=("dp:2,cp:2", "fsdp:2,cp:2", "cp:2,tp:2", "dp:2,fsdp:2,cp:2", "dp:2,cp:2,tp:2"),
)  # fmt: skip
KNOBS = dict(attention="ring", balanced=True)
#: Formulas of the bytes that a rank sends per layer. Q is the size of its queries in bytes, and K
#: the size of its keys; its values have the size of its keys.
FORMULAS = {
    "all_gather": "(N-1) 2 K gathered per layer, and scattered back",
    "ulysses": "(N-1)/N 4 (Q + K) per layer",
    "ring": "(3N-2) 2 K per layer",
}


def positions(knobs: Knobs, length: int, places: int) -> list[Tensor]:
    """Return the positions of the sequence that each rank along ``cp`` holds.

    If ``balanced``, each rank has a chunk from the front and the matching chunk from the end. All
    ranks then attend to the same number of keys in causal attention. Ulysses has the whole sequence
    during attention, so its parts are contiguous.
    """
    every = torch.arange(length)
    if not knobs["balanced"] or knobs["attention"] == "ulysses":
        return list(every.chunk(places))
    parts = every.chunk(2 * places)
    return [torch.cat((parts[i], parts[2 * places - 1 - i])) for i in range(places)]


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect the traffic of attention, of layers that are split by width, and of gradients."""
    mesh = batching.mesh
    size = element_bytes(model)
    n = mesh.size(Dim.CP)
    length = int(facts.input_shape[0])
    wide = mesh.size(Dim.TP)
    _check(case, knobs, n, length)
    if wide > 1:
        width.check(model, case, wide, sequence=False, loss=False)
    blocks = width.blocks(model, wide)
    elements = sum(shape.numel() for shapes in blocks for shape in shapes)
    along = Traffic()
    inputs = data_parallel.inputs(facts, batching.largest)
    cut = n * wide
    for q, k in _heads(model, inputs) if n > 1 else ():
        if knobs["attention"] == "ulysses" and k.shape[1] % cut:
            raise ValueError(
                f"{k.shape[1]} key-value heads do not divide evenly over cp:{n}, tp:{wide}"
            )
        along += _sent(case, str(knobs["attention"]), q.nbytes / cut, k.nbytes / cut, n)
    part = inputs[:, : length // n]
    along += width.sent(model, part, case, wide, sequence=False, loss=False)
    total = along * batching.accumulate
    total += data_parallel.bytes_by_mesh(case, mesh, blocks, size, 2 * batching.accumulate)
    kept = facts.activation_bytes_per_sample + facts.loss_bytes_per_sample
    held = kept * batching.largest / n
    return traffic.expected(
        [total] * case.world_size,
        module=data_parallel.module_of(mesh, model),
        placements=("Replicate()",) if n == case.world_size > 1 else (),
        ideal_efficiency=1.0,
        memory_bytes=training_bytes(elements / mesh.size(Dim.FSDP), size, facts, 0) + int(held),
        formula=f"{FORMULAS[str(knobs['attention'])]} + 2 (N-1)/N bytes(P)",
        global_batch=batching.global_batch,
    )


def _check(case: CaseSpec, knobs: Knobs, n: int, length: int) -> None:
    """Raise ValueError if the knobs or the case are not supported."""
    if knobs["attention"] not in FORMULAS:
        attention = knobs["attention"]
        raise ValueError(
            f"{case.strategy}.attention is {attention!r}; expected one of {', '.join(FORMULAS)}"
        )
    if not case.communicate:
        raise ValueError(
            "context_parallel cannot run without communication, because ranks attend to keys of"
            " other ranks"
        )
    if length % (2 * n):
        raise ValueError(f"a sequence of {length} does not divide into {2 * n} equal parts")
    if case.checkpoint:
        raise ValueError(
            "checkpoint=True is not supported, because recomputed blocks would communicate again"
        )


def _sent(case: CaseSpec, way: str, q: float, k: float, n: int) -> Traffic:
    """Return the traffic of one layer in forward and backward.

    ``q`` and ``k`` are the bytes of a rank's queries and keys. ``all_gather`` gathers keys and
    values, and reduce-scatters their gradients. ``ulysses`` runs an all-to-all for queries, keys,
    values, outputs, and for the gradient of each. ``ring`` sends keys and values N - 1 times in
    forward and N - 1 times in backward, and their gradients N times.
    """
    if way == "all_gather":
        gather = traffic.all_gather(2 * k, n)
        return gather + traffic.reduce_scatter(case.backend)(2 * k * n, n)
    if way == "ulysses":
        swaps = [traffic.all_to_all(payload, n) for payload in (q, k, k, q)]
        return sum(swaps, Traffic()) * 2
    return traffic.sent(2 * k) * (3 * n - 2)


def _attentions(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the attention modules, which the model file names with ``CONTEXT``."""
    for name, module in model.named_modules():
        if fnmatch.fnmatchcase(name, str(model.context)):
            yield module


def _heads(model: nn.Module, inputs: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the queries and keys of every attention module, for inputs on the meta device."""
    seen: list[tuple[Tensor, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda _, given, __: seen.append((given[0], given[1])))
        for module in _attentions(model)
    ]
    model(inputs)
    for handle in handles:
        handle.remove()
    return seen


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Replace the model's attention by attention over the sequence of all ranks along ``cp``.

    Layers are also split along ``tp``, and the result is replicated or sharded along the other
    dimensions of the mesh.
    """
    n = ctx.mesh.size(Dim.CP)
    if ctx.mesh.size(Dim.TP) > 1:
        width.cut(model, ctx, sequence=False, loss=False)
    if n > 1:
        group = groups.group(ctx, Dim.CP)
        length = int(ctx.sample(1).shape[1])
        places = [part.to(ctx.device) for part in positions(knobs, length, n)]
        ways = {
            "all_gather": lambda: attention.gathered(group, places),
            "ulysses": lambda: attention.ulysses(group),
            "ring": lambda: attention.ring(group, places),
        }
        for module in _attentions(model):
            module.positions, module.length = places[group.rank()], length  # type: ignore[assignment]
            module.attend = ways[str(knobs["attention"])]()  # type: ignore[assignment]
    return data_parallel.by_mesh(model, ctx).trainer(ctx)
