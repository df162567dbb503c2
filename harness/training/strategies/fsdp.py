"""FSDP2: parameters, gradients and optimizer state sharded per block; hybrid over a mesh."""

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy

from harness.base.errors import NotComparableError
from harness.cases import Batching, CaseSpec, Device, Dim, Optimizer, Passes, Precision
from harness.record import Expected, ModelFacts
from harness.training.context import Knobs, RankContext, parts
from harness.training.optimizers import gathers as matrices_gathered, is_hidden
from harness.training.parallel import data_parallel, traffic
from harness.training.parallel.groups import OverAllToAll, codec_of, coded_bytes
from harness.training.trainer import LocalTrainer, element_bytes, num_elements, training_bytes
from harness.training.transports import Codec

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("fsdp", "dp"), replicas=True,
    uneven=True, forward=True, on_host="offload",
    precisions=("fp32", "bf16", "autocast", "fp16", "fp8"), products=("dp:2,fsdp:2",),
)  # fmt: skip
KNOBS = dict(reshard=True, reshard_to=0, scatter="own", prefetch=0, offload=False, mixed=False)


def expect(
    case: CaseSpec, model: nn.Module, batching: Batching, facts: ModelFacts, knobs: Knobs
) -> Expected:
    """Expect all-gathers of parameters in forward and backward, and a reduce-scatter of gradients.

    Each block of an nn.Sequential is gathered and reduced separately, any other model as a whole.
    With ``reshard`` the parameters of blocks are gathered again in backward, including the last
    block. Without ``reshard``, and for other models, they are gathered in forward only. If
    ``reshard_to`` is set, each group of that many ranks keeps all parameters between forward and
    backward. With ``mixed`` parameters are kept in fp32, but gathered and used in bf16.

    NCCL and ``scatter="all_to_all"`` send (N-1)/N of the gradients. gloo has no reduce-scatter and
    sends the bytes of an all-reduce, 2 (N-1)/N. If ``scatter`` names a compressor, gradients are
    encoded before they are sent.
    """
    mesh = batching.mesh
    size = element_bytes(model)
    n = mesh.size(Dim.FSDP)
    replicas = mesh.size(Dim.DP)
    _refuse(case, model, n, replicas, knobs)
    again = int(knobs["reshard_to"])
    codec = _codec(knobs)
    forward = case.phase is Passes.FORWARD
    blocks = [[parameter.shape for parameter in block.parameters()] for block in parts(model)]
    largest = float(max(sum(shape.numel() for shape in shapes) for shapes in blocks) * size)
    twice = 2 if _reshards(model, case, knobs) and not (again or forward) else 1
    gathers = batching.accumulate * twice
    scatter = traffic.reduce_scatter(case.backend)
    if knobs["scatter"] != "own":
        scatter = traffic.all_to_all
    if codec is not None:
        scatter = functools.partial(_coded, codec, size)
    if forward:
        scatter = _nothing
    gathered = 2 if knobs["mixed"] else size
    sent = traffic.Traffic()
    unused = {model.get_parameter(name) for name in getattr(model, "unused", ())}
    trained = [
        [w.shape for w in block.parameters() if w.requires_grad and w not in unused]
        for block in parts(model)
    ]
    # Backward gathers all blocks from the last to the first that trains, and prefetches one more.
    first = next((number - 1 for number, shapes in enumerate(trained) if shapes), len(trained))
    for number, (shapes, of_gradients) in enumerate(zip(blocks, trained, strict=True)):
        of_block = gathers if number >= first else batching.accumulate
        sent += traffic.sharded([shapes], size, n, of_block, 1, _nothing, gathered)
        sent += traffic.sharded([of_gradients], size, n, 0, replicas, scatter)
    passes = 0 if forward else 2 - (scatter(1.0, 2).sent < 1)
    formula = f"{gathers + passes:g} (N-1)/N bytes(P)"
    if case.optimizer is Optimizer.MUON and not forward:
        hidden = [parameter.shape for parameter in model.parameters() if is_hidden(parameter)]
        sent += matrices_gathered(hidden, size, n)
        formula += " + (N-1)/N bytes(matrices)"
    for shapes in blocks if again else ():
        part = traffic.padded(shapes, gathered, n) * n / again
        sent += traffic.all_gather(part, again) * batching.accumulate
    formula += f" + (K-1)/K bytes(P), K = {again}" if again else ""
    formula += f" + 2 (D-1)/D bytes(P)/N, D = {replicas}" if replicas > 1 else ""
    return traffic.expected(
        [sent] * case.world_size,
        largest=largest,
        module=f"FSDP{type(model).__name__}",
        placements=("Replicate() Shard(dim=0)" if replicas > 1 else "Shard(dim=0)",),
        ideal_efficiency=1.0,
        # Every rank builds the whole model before sharding, which needs memory for all parameters.
        memory_bytes=max(
            num_elements(model) * size,
            training_bytes(num_elements(model) / n, size, facts, batching.largest)
            + 2 * int(largest),
        ),
        formula=formula + (", gathered in bf16" if knobs["mixed"] else ""),
        casts=bool(knobs["mixed"]) or codec is not None,
        global_batch=batching.global_batch,
    )


def _refuse(case: CaseSpec, model: nn.Module, n: int, replicas: int, knobs: Knobs) -> None:
    """Raise ValueError for knobs that contradict each other or the case.

    Raise NotComparableError for a parameter that cannot be sharded.
    """
    if scalar := next((name for name, w in model.named_parameters() if not w.dim()), ""):
        raise NotComparableError(
            f"{case.strategy} cannot shard {scalar}, which has no dimension: give it the shape (1,)"
        )
    again = int(knobs["reshard_to"])
    if again and (n % again or again in (1, n) or not knobs["reshard"]):
        raise ValueError(
            f"{case.strategy}.reshard_to={again} is not supported on {n} ranks; expected a divisor"
            f" of {n} between 1 and {n}, with reshard=True"
        )
    if knobs["offload"] and case.device is Device.CPU:
        raise ValueError(f"{case.strategy}.offload needs GPUs, because it moves shards to the CPU")
    if knobs["mixed"] and case.precision is not Precision.AUTOCAST:
        raise ValueError(
            f"{case.strategy}.mixed is not supported with precision={case.precision}; expected"
            " precision=autocast"
        )
    kept = not knobs["reshard"] or again or replicas > 1
    if case.phase is Passes.FORWARD and kept:
        raise ValueError(
            "phase=forward needs reshard=True, reshard_to=0 and no replicas: otherwise parameters"
            " stay gathered after the first forward pass, and later passes have no all-gather"
        )


def _reshards(model: nn.Module, case: CaseSpec, knobs: Knobs) -> bool:
    """Return whether parameters are sharded again between forward and backward.

    As by torch's default, a model that is sharded as a whole keeps them: backward needs all of them
    at once, and its outputs may contain parameters. Forward passes alone always shard them again.
    """
    whole = not isinstance(model, nn.Sequential) and case.phase is not Passes.FORWARD
    return bool(knobs["reshard"]) and not whole


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    """Shard the model with ``fully_shard`` and the options that the knobs select."""
    reshards = _reshards(model, ctx.case, knobs)
    more: dict[str, Any] = dict(reshard_after_forward=knobs["reshard_to"] or reshards)
    if knobs["offload"]:
        more["offload_policy"] = CPUOffloadPolicy()
    if knobs["mixed"]:
        more["mp_policy"] = MixedPrecisionPolicy(torch.bfloat16, torch.float32)
    wrapped = data_parallel.sharded(model, ctx, more)
    blocks: list[FSDPModule] = [module for module in parts(model) if isinstance(module, FSDPModule)]
    for block in blocks if knobs["scatter"] != "own" else ():
        block.set_custom_reduce_scatter(OverAllToAll(_codec(knobs)))
    ahead = int(knobs["prefetch"])
    for i, block in enumerate(blocks):  # by default FSDP2 gathers one block ahead
        if ahead > 1:
            block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + ahead])
            block.set_modules_to_backward_prefetch(blocks[max(0, i - ahead) : i][::-1])
    return wrapped.trainer(ctx)


def _nothing(payload: float, ranks: int) -> traffic.Traffic:
    """Return the traffic of gradients in a forward pass, which is none."""
    return traffic.Traffic()


def _codec(knobs: Knobs) -> Codec | None:
    """Return the codec of the compressor that ``scatter`` names, or None if it names none."""
    return None if knobs["scatter"] in ("own", "all_to_all") else codec_of(str(knobs["scatter"]))


def _coded(codec: Codec, size: int, payload: float, ranks: int) -> traffic.Traffic:
    """Return the traffic of an all-to-all of encoded gradients of ``payload`` bytes."""
    return traffic.all_to_all(coded_bytes(codec, payload / size, ranks), ranks)
