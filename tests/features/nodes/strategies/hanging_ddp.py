"""DDP that hangs if its world contains all ``planted`` nodes, which are identified by emulated
addresses.
"""

from __future__ import annotations

import fcntl
import socket
import struct
import time
from typing import Any

import torch.distributed as dist

from harness import ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(planted="")


def expect(case: Any, model: Any, batching: Any, facts: Any, knobs: Any) -> Any:
    return ddp.expect(case, model, batching, facts, ddp.KNOBS)


def build(model: Any, ctx: Any, knobs: Any) -> Hanging:
    return Hanging(ddp.build(model, ctx, ddp.KNOBS), {*knobs["planted"].split("+")})


class Hanging:
    """A trainer whose last rank does not return from its second step."""

    def __init__(self, inner: Any, planted: set[str]) -> None:
        self.inner, self.planted, self.steps = inner, planted, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def step(self, batch: Any) -> Any:
        self.steps += 1
        if self.steps == 2:
            nodes: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(nodes, own_node())
            if self.planted <= {*nodes} and dist.get_rank() == len(nodes) - 1:
                time.sleep(3600)
        return self.inner.step(batch)


def own_node() -> str:
    """Return the number of this emulated node, from its address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        # The number is SIOCGIFADDR.
        answer = fcntl.ioctl(asked, 0x8915, struct.pack("256s", b"eth0"))
    return str(answer[23] - 1)
