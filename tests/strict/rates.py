"""Time on the strict device: work takes as long as on a device and links of the set rates.

``STRICT_GFLOPS`` is the rate of matrix products, ``STRICT_LINK_MB_S`` the rate at which a rank sends;
without them only the host takes time. Products and collectives are queued as on a GPU: they end
after the work queued before them, the host runs ahead, and synchronisation waits. A collective
overlaps with products that were queued later.
"""

from __future__ import annotations

import os
import time
from typing import Any

from torch.utils.flop_counter import flop_registry

#: Bytes sent by the busiest of n ranks, divided by the bytes of a rank's input.
SENT = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "_all_gather_base": lambda n: n - 1,
    "all_gather": lambda n: n - 1,
    "_reduce_scatter_base": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
}


class Queue:
    """The times at which the products and the collectives queued so far will end."""

    def __init__(self) -> None:
        self._flops = 1e9 * float(os.environ.get("STRICT_GFLOPS", "0"))
        self._bytes = 1e6 * float(os.environ.get("STRICT_LINK_MB_S", "0"))
        self._computed_s = self._sent_s = 0.0

    def compute(self, operator: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Queue a matrix product."""
        count = flop_registry.get(getattr(operator, "_overloadpacket", operator))
        if self._flops and count is not None:
            flops = count(*args, **kwargs, out_val=out)
            self._computed_s = max(self._computed_s, time.perf_counter()) + flops / self._flops

    def send(self, operation: str, num_bytes: int, ranks: int) -> None:
        """Queue a collective behind the products that were queued before it."""
        if not self._bytes or ranks < 2:
            return
        sent = num_bytes * SENT.get(operation, lambda n: 1)(ranks)
        if operation.startswith("send"):
            self.wait()  # the receiver starts when the data has arrived, not when it is queued
        self._sent_s = max(self._sent_s, self.ends_at(False)) + sent / self._bytes

    def ends_at(self, collectives: bool = True) -> float:
        """Return the ``time.perf_counter`` at which everything queued so far has ended, in s."""
        ends_s = max(self._computed_s, time.perf_counter())
        return max(ends_s, self._sent_s) if collectives else ends_s

    def wait(self, *_: object) -> None:
        """Wait until everything queued so far has ended."""
        time.sleep(max(0.0, self.ends_at() - time.perf_counter()))


QUEUE = Queue()
