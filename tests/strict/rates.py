"""Time on the strict device: how long a device and links of set rates would take, by the wall clock.

``STRICT_GFLOPS`` is the rate of matrix products, ``STRICT_LINK_MB_S`` what a rank sends in a second;
without them nothing takes time but the host. Products and collectives are queued as on a GPU: they
end after what was queued before them, the host runs ahead, and whoever synchronises waits. A
collective runs beside products that were queued later.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch.utils.flop_counter import flop_registry

#: Sent by the busiest rank, over the bytes that a rank gives to the operation, for n ranks.
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "_all_gather_base": lambda n: n - 1,
    "all_gather": lambda n: n - 1,
    "_reduce_scatter_base": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


class Queue:
    """When the products, and the collectives, that were queued so far will have ended."""

    def __init__(self) -> None:
        self._flops = 1e9 * float(os.environ.get("STRICT_GFLOPS", "0"))
        self._bytes = 1e6 * float(os.environ.get("STRICT_LINK_MB_S", "0"))
        self._computed_s = self._sent_s = 0.0

    def compute(self, operator: Any, args: Any, kwargs: Any, out: Any) -> None:
        """A matrix product is queued."""
        count = flop_registry.get(getattr(operator, "_overloadpacket", operator))
        if self._flops and count is not None:
            flops = count(*args, **kwargs, out_val=out)
            self._computed_s = max(self._computed_s, time.perf_counter()) + flops / self._flops

    def send(self, operation: str, num_bytes: int, ranks: int) -> None:
        """A collective is queued behind the products that it needs."""
        if not self._bytes or ranks < 2:
            return
        sent = num_bytes * SENT.get(operation, lambda n: 1)(ranks)
        if operation.startswith("send"):
            self.wait()  # its other rank starts when it is there, not when it is queued
        self._sent_s = max(self._sent_s, self.ends_at(False)) + sent / self._bytes

    def ends_at(self, collectives: bool = True) -> float:
        """When everything queued so far has ended: by ``time.perf_counter``, in s."""
        ends_s = max(self._computed_s, time.perf_counter())
        return max(ends_s, self._sent_s) if collectives else ends_s

    def wait(self, *_: object) -> None:
        """Whoever synchronises waits for it."""
        time.sleep(max(0.0, self.ends_at() - time.perf_counter()))


QUEUE = Queue()
