"""Expert parallel with one injected bug; ``bug="none"`` is correct and must pass."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from harness.training.context import Knobs, RankContext
from harness.training.parallel import experts
from harness.training.strategies import expert_parallel
from harness.training.trainer import LocalTrainer

SUPPORTS = dict(
    worlds="any", oracle="shard_ordered", initial="same_seed", dims=("ep",), replicas=True,
    needs=("EXPERTS",),
)  # fmt: skip
KNOBS = dict(bug="none")
expect = expert_parallel.expect


def build(model: nn.Sequential, ctx: RankContext, knobs: Knobs) -> LocalTrainer:
    bug = knobs["bug"]
    if bug == "collapsed":  # all tokens are routed to the same experts
        for name, layer in model.named_modules():
            if name.endswith("router"):
                layer.register_forward_hook(
                    lambda _, __, out: out * 1e-6 - 1e3 * torch.arange(out.shape[-1])
                )
    trainer = expert_parallel.build(model, ctx, knobs)
    average = trainer.average
    assert average is not None

    def wrong() -> None:
        if bug != "not_averaged":
            average()
        for name in trainer.owned if bug == "divided_twice" else ():  # type: ignore[attr-defined]
            gradient = model.get_parameter(name).grad
            assert gradient is not None
            gradient /= ctx.mesh.shards

    trainer.average = wrong
    if bug == "others_dropped":
        for module in experts.of(model).values():
            plain = module.forward

            def own_only(rooms: Tensor, plain=plain) -> Tensor:  # type: ignore[no-untyped-def]
                answers = plain(rooms)
                kept = torch.zeros(len(rooms), 1, 1)
                kept.chunk(ctx.world_size)[ctx.rank].fill_(1.0)
                return answers * kept

            module.forward = own_only
    return trainer
