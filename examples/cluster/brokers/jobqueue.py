"""Start nodes of a run with dask-jobqueue, as jobs of PBS, LSF, SGE or HTCondor.

Each worker of dask joins the run as one node. The table [hosts] of the cluster file needs
``listen``, ``port``, ``token_file`` and ``ssh = false``. Start the run on the login node as well:
    scaleproof run ddp/decoder-350m/weak --engine hosts --nodes 2x8 --gpus 16 --cluster cluster.toml
"""

import subprocess
import sys

from dask.distributed import Client
from dask_jobqueue import PBSCluster  # or LSFCluster, SGECluster, HTCondorCluster


def join(head: str, token_file: str, order: int) -> int:
    """Make this worker a node of the run; return the exit status when the run has ended."""
    words = ["--token-file", token_file, "--order", str(order)]
    return subprocess.run(["scaleproof", "jobs", "join", head, *words], check=False).returncode


if __name__ == "__main__":
    head, token_file, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    cluster = PBSCluster(cores=1, processes=1, memory="64GB", walltime="02:00:00")
    cluster.scale(jobs=nodes)
    client = Client(cluster)
    client.wait_for_workers(nodes)
    workers = list(client.scheduler_info()["workers"])[:nodes]
    ends = [
        client.submit(join, head, token_file, i, workers=[worker], pure=False)
        for i, worker in enumerate(workers)
    ]
    sys.exit(max(client.gather(ends)))
