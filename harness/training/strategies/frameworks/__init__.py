"""Other frameworks' data parallelism, each trained and checked as our own: one file each.

A framework is imported by the rank that needs it, after the fork: some start threads.
"""

import os
from dataclasses import replace

from harness.cases import Batching, Dim, Mesh
from harness.training.context import RankContext, within


def all_sharded(batching: Batching) -> Batching:
    """Gives the same batches, with parameters in parts over all ranks, as these frameworks' FSDP2
    has them whatever the case's mesh says of samples.
    """
    ranks = batching.mesh.ranks
    return replace(batching, mesh=Mesh({Dim.FSDP: ranks} if ranks > 1 else {}))


def as_torchrun_does(ctx: RankContext) -> None:
    """Set the variables by which a framework knows its place; without them some train alone."""
    local_rank, local_size = within(ctx.case.nodes, ctx.rank)
    os.environ |= {
        "RANK": str(ctx.rank),
        "WORLD_SIZE": str(ctx.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }
