"""The program that torchrun starts for each rank.

It is called as ``python -m harness.training.rank.under_torchrun SPEC``; SPEC is the path of a
``LaunchSpec`` in JSON.
"""

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist
import torch.distributed.pipelining  # noqa: F401  (the rank reports modules that load after this)
from torch.distributed.distributed_c10d import rendezvous

from harness.base import programs
from harness.base.documents import from_doc
from harness.host import cores
from harness.launch.wire import evidence
from harness.launch.wire.beats import Beats
from harness.launch.wire.messages import LaunchSpec
from harness.training.rank.rank import leave, run_rank
from harness.training.rank.setup import RankPlace, cpus_of


def env_store() -> dist.Store:
    """Return the rendezvous store that torchrun's environment variables describe."""
    store: dist.Store = next(iter(rendezvous("env://")))[0]
    return store


def main() -> None:
    """Read this rank's position from torchrun's environment, and run its task."""
    os.environ.pop("PYTHONSAFEPATH", None)  # a user's script must not inherit it
    programs.own_folder()
    program = int(os.environ[evidence.FAMILY].partition("-")[0])
    # If the parent has one of these ids, torchrun has ended, and nothing waits for this rank.
    if os.getppid() in (1, program):
        leave(1)
    spec = from_doc(LaunchSpec, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    env = os.environ
    case = spec.case
    device = int(env["LOCAL_RANK"]) * case.devices_per_rank
    core = int(env["RANK"]) * case.devices_per_rank
    place = RankPlace(
        rank=int(env["RANK"]),
        world_size=int(env["WORLD_SIZE"]),
        local_rank=int(env["LOCAL_RANK"]),
        node=int(env["GROUP_RANK"]),
        device=device,
        cpus=cpus_of(case, device, core, cores.near_gpus()),
        parent=os.getppid(),
        store=env_store,
    )
    (Path(spec.out) / f"rank{place.rank}.pid").write_text(str(os.getpid()), encoding="utf-8")
    leave(run_rank(spec, place, Beats(Path(spec.out) / "beats", place.world_size)))


if __name__ == "__main__":
    main()
