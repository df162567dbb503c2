"""Join a run with dask-jobqueue: each worker, a PBS, LSF, SGE or HTCondor job, is one node.

Start the run on the login node at the same time. Its cluster.toml sets ``listen``, ``port`` and
``token_file`` in [hosts], and ssh = false:
    scaleproof run ddp/decoder-350m/weak --engine hosts --nodes 2x8 --gpus 16 --cluster cluster.toml
"""

import subprocess
import sys

from dask.distributed import Client
from dask_jobqueue import PBSCluster  # or LSFCluster, SGECluster, HTCondorCluster


def join(head: str, token_file: str, order: int) -> int:
    """Join the run as one node, and return when the run is over."""
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
