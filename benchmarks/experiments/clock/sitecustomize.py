"""An independent clock: write the time of every optimizer step of a process to a file.

Python runs this file at its start if its folder is in PYTHONPATH. It has no code in common with
scaleproof. It waits for the import of torch, and then registers a hook that torch calls after every
optimizer step. Forked processes inherit the hook. On a GPU a step ends after it was issued, so a
thread waits for the device, and writes each step when it is complete.
"""

import importlib
import importlib.util
import os
import queue
import sys
import threading
import time

#: Environment variable with the folder of the files ``RANK-PID.ticks``. For each step they have two
#: int64: the times in ns since 1970 at which it was issued and complete.
FOLDER = "OTHER_CLOCK"


class _Torch:
    """An import hook that finds torch as usual, once, and then registers the clock."""

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


class File:
    """The file with the times of one process."""

    def __init__(self) -> None:
        where = f"{os.environ[FOLDER]}/{os.environ.get('RANK', '')}-{os.getpid()}.ticks"
        self._file = os.open(where, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        self._issued: queue.Queue = queue.Queue()  # type: ignore[type-arg]
        self._waits = False

    def tick(self) -> None:
        torch = sys.modules["torch"]
        now_ns = time.time_ns()
        if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
            self._write(now_ns, now_ns)
            return
        if not self._waits:
            self._waits = True
            threading.Thread(target=self._wait, daemon=True).start()
        event = torch.cuda.Event()
        event.record()
        self._issued.put((now_ns, event))

    def _wait(self) -> None:
        while True:
            issued_ns, event = self._issued.get()
            event.synchronize()
            self._write(issued_ns, time.time_ns())

    def _write(self, *stamps: int) -> None:
        os.write(self._file, b"".join(ns.to_bytes(8, sys.byteorder) for ns in stamps))


_files: dict[int, File] = {}


def tick(*_: object) -> None:
    pid = os.getpid()
    if pid not in _files:
        _files[pid] = File()
    _files[pid].tick()


if FOLDER in os.environ:
    sys.meta_path.insert(0, _Torch())
