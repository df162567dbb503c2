"""Data parallelism of other frameworks, trained and checked like the strategies of this package.

Each file covers one framework. A framework is imported in the rank after the fork, because some
frameworks start threads when they are imported.
"""

import os
from dataclasses import replace

from harness.cases import Batching, Dim, Mesh
from harness.training.context import RankContext, within


def all_sharded(batching: Batching) -> Batching:
    """Return the batching with a mesh that shards parameters over all ranks.

    These frameworks always apply FSDP2 to all ranks, whatever the mesh of the case is.
    """
    ranks = batching.mesh.ranks
    return replace(batching, mesh=Mesh({Dim.FSDP: ranks} if ranks > 1 else {}))


def as_torchrun_does(ctx: RankContext) -> None:
    """Set the environment variables that torchrun sets.

    Frameworks read their rank and world size from these variables. If they are not set, some
    frameworks train each rank separately and raise no error.
    """
    local_rank, local_size = within(ctx.case.nodes, ctx.rank)
    os.environ |= {
        "RANK": str(ctx.rank),
        "WORLD_SIZE": str(ctx.world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_size),
    }
