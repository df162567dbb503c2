"""Whether ranks that train apart hear of each other.

The oracle of such ranks is the ``Simulation`` of the strategy's own file: one that exchanges
nothing agrees with a strategy that exchanges nothing. So the simulation is run again, with other
samples for some ranks. What the others trained must change by a part of what these trained.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor

from harness.record import Check
from harness.training.context import Loaded, RankContext, build_model, make_batch
from harness.training.data import Batch, Sampler
from harness.training.parallel.outer import vector
from harness.training.rank.simulated import Simulated

#: The least part of their change that has to come over.
LEAST_HEARD = 0.01
#: Shards that every rank takes in turn; of more each rank takes its own.
IN_TURN = 2
#: Ranks that a sentence names.
SHOWN = 8


def checks(
    loaded: Loaded, ctx: RankContext, seen: Sequence[Sequence[object]], steps: int
) -> Iterator[Check]:
    """Looks at cuts of the ranks in two, by one bit of their numbers; all ranks call it.

    Up to eight ranks by every bit, beyond by the lowest, the middle and the highest one: what a
    gate costs does not grow with the world. ``seen`` is what ranks had seen of the others in each
    step, where that depends on what came in. Across a cut something must come over one way or the
    other: of few ranks that are drawn, as in federated averaging, others hear.
    """
    if loaded.supports.jobs > 1:
        return
    shards = ctx.batching.shards
    usual = _trained(loaded, ctx, [False] * shards, seen, steps).double()
    least = 1.0
    worst = ""
    highest = (shards - 1).bit_length() - 1
    for bit in sorted({0, highest // 2, highest} if highest > 2 else range(highest + 1)):
        best = 0.0
        for side in (0, 1):
            changed = [shard >> bit & 1 == side for shard in range(shards)]
            other = _trained(loaded, ctx, changed, seen, steps)
            moved = float((other.double() - usual).norm())
            moves = ctx.gather((changed[ctx.shard], moved))
            trained = max((m for is_changed, m in moves if is_changed), default=0.0)
            heard = max((m for is_changed, m in moves if not is_changed), default=0.0)
            best = max(best, heard / trained if trained else 0.0)
            if best >= LEAST_HEARD:
                break
        if best < least:
            least = best
            apart = [shard for shard in range(shards) if shard >> bit & 1]
            more = ", ..." if len(apart) > SHOWN else ""
            names = ", ".join(map(str, apart[:SHOWN]))
            worst = f"of what ranks {names}{more} train comes to the others, or back"
    yield Check(
        name="ranks_hear_each_other",
        ok=least >= LEAST_HEARD,
        value=least,
        limit=LEAST_HEARD,
        detail=worst,
        at_least=True,
    )


def in_turn(ctx: RankContext) -> bool:
    """Whether every rank takes all shards in turn: of many each takes its own."""
    shards = ctx.batching.shards
    return shards <= IN_TURN or shards < ctx.world_size


def _trained(
    loaded: Loaded,
    ctx: RankContext,
    changed: Sequence[bool],
    seen: Sequence[Sequence[object]],
    steps: int,
) -> Tensor:
    """This rank's parameters after so many steps, where the changed shards take later samples."""
    case = ctx.case
    with ctx.device:
        simulated = Simulated(build_model(loaded, case, case.seed), loaded, ctx)
    sampler = Sampler(ctx.batching, steps_per_epoch=2 * steps + 1, seed=case.seed)
    for step in range(steps):

        def batch(shard: int, step: int = step) -> Batch:
            ids = sampler.ids(step + steps * changed[shard], shard)
            return make_batch(loaded, case, ids, ctx.device)

        if seen:
            simulated.note_seen(seen[step])
        if in_turn(ctx):
            simulated.step([batch(shard) for shard in range(len(changed))])
        else:
            simulated.together(batch(ctx.shard))
    return vector(simulated.model)
