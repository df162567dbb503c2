"""A clock that knows nothing of harness: every optimizer step of a process, in a file of its own.

A Python that finds this folder in PYTHONPATH runs it as it starts. It waits for torch, and then has
torch call it after every optimizer step, by the wall clock. Forks inherit it.
"""

import importlib
import importlib.util
import os
import sys
import time

#: Where files go, ``RANK-PID.ticks``: int64 ns since 1970, one a step.
FOLDER = "OTHER_CLOCK"


class _Torch:
    """Finds torch as usual, once, and installs the clock behind it."""

    def find_spec(self, name, path, target=None):  # type: ignore[no-untyped-def]
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        load = spec.loader.exec_module

        def loaded(module):  # type: ignore[no-untyped-def]
            load(module)
            optimizers = importlib.import_module("torch.optim.optimizer")
            optimizers.register_optimizer_step_post_hook(tick)

        spec.loader.exec_module = loaded
        return spec


_files: dict[int, int] = {}


def tick(*_: object) -> None:
    now_ns = time.time_ns()
    pid = os.getpid()
    if pid not in _files:
        where = f"{os.environ[FOLDER]}/{os.environ.get('RANK', '')}-{pid}.ticks"
        _files[pid] = os.open(where, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(_files[pid], now_ns.to_bytes(8, sys.byteorder))


if FOLDER in os.environ:
    sys.meta_path.insert(0, _Torch())
