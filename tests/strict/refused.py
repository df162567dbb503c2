"""Program for a strict machine: checks what its device refuses and accepts. Exits 1 with a list."""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn import functional

HERE = torch.device("strict", 0)
there, here = torch.ones(4), torch.ones(4, device=HERE)
index = torch.tensor([0, 2])

REFUSED: dict[str, Callable[[], object]] = {
    "sum of two devices": lambda: here + there,
    "product of two devices": lambda: torch.outer(here, there),
    "a list of two devices": lambda: torch.cat([here, there]),
    "a host mask for a device": lambda: torch.where(there > 0, here, here),
    "device indices for a host tensor": lambda: there[index.to(HERE)],
    "index_select by host indices": lambda: here.index_select(0, index),
    "an embedding of host ids": lambda: functional.embedding(index, torch.ones(4, 2, device=HERE)),
    "a host value that is added to": lambda: torch.tensor(0.0).add_(here[0]),
    "numpy of the device": lambda: here.numpy(),
    "numpy by protocol": lambda: __import__("numpy").asarray(here),
    "a generator of the host": lambda: torch.rand(2, device=HERE, generator=torch.Generator()),
    "the same in place": lambda: here.clone().normal_(generator=torch.Generator()),
    "an event that was not recorded": lambda: _event(True).elapsed_time(_event(True)),
    "an event without timing": lambda: _recorded(False).elapsed_time(_recorded(False)),
    "an event of the host": lambda: torch.Event(device="cpu"),
    "a stack of two devices": lambda: torch.stack([torch.tensor(0.0), here[0]]),
    "index_select by a single host index": lambda: here.index_select(0, torch.tensor(1)),
    "an embedding of one host id": lambda: functional.embedding(
        torch.tensor(1), torch.ones(4, 2, device=HERE)
    ),
    "a single host mask": lambda: here.masked_fill(torch.tensor(True), 0.0),
    "a sum into the host": lambda: torch.add(here[0], here[1], out=torch.tensor(0.0)),
    "fp32 in flash attention": lambda: _attention(torch.float32),
    "another device": lambda: torch.accelerator.set_device_index(torch.device("strict", 1)),
    "host tensors in a collective": lambda: dist.all_reduce(there),
    "half of them": lambda: dist.all_gather_into_tensor(torch.empty(4, device=HERE), there),
    "a gather of host tensors": lambda: dist.all_gather([torch.empty(4)], there),
    "a device tensor that gloo sends": lambda: _sent_over_gloo(),
}  # fmt: skip
PASSED: dict[str, Callable[[], object]] = {
    "a single value of the host": lambda: here * torch.tensor(2.0),
    "host indices for a device tensor": lambda: here[index],
    "to and from": lambda: there.to(HERE).cpu().numpy(),
    "a generator of the device": lambda: torch.rand(2, device=HERE, generator=torch.Generator(HERE)),
    "bf16 in flash attention": lambda: _attention(torch.bfloat16),
    "a collective": lambda: dist.all_reduce(here.clone()),
    "python objects": lambda: dist.all_gather_object([None], {"a": 1}),
    "autocast": lambda: _autocast(),
    "a single value that fills": lambda: here.masked_fill(here > 0, torch.tensor(1.0)),
    "events that were recorded": lambda: _recorded(True).elapsed_time(_recorded(True)),
    "gradients": lambda: (here.clone().requires_grad_() * 2).sum().backward(),
}  # fmt: skip


def _attention(dtype: torch.dtype) -> object:
    torch.backends.cuda.enable_math_sdp(False)
    x = torch.ones(1, 1, 4, 8, device=HERE, dtype=dtype)
    return functional.scaled_dot_product_attention(x, x, x)


def _sent_over_gloo() -> None:
    group = dist.new_group(backend="gloo")
    try:
        torch.ops.c10d.send([here], group.boxed(), 0, 0)
    except RuntimeError as error:
        if "Bad address" in str(error):  # any other error: gloo does not send to the same rank
            raise


def _event(timing: bool) -> torch.Event:
    return torch.Event(device=HERE, enable_timing=timing)


def _recorded(timing: bool) -> torch.Event:
    made = _event(timing)
    made.record()
    return made


def _autocast() -> None:
    with torch.autocast("strict", dtype=torch.bfloat16):
        made = torch.nn.Linear(4, 2, device=HERE)(here)
    assert made.dtype is torch.bfloat16 and made.device == HERE


def main() -> int:
    """Try all operations."""
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    wrong = []
    for name, do in REFUSED.items():
        try:
            do()
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            continue
        wrong.append(f"not refused: {name}")
    for name, do in PASSED.items():
        try:
            do()
        except Exception as error:
            wrong.append(f"refused: {name}: {error}")
    del do
    from strict.device import MEMORY

    before = MEMORY.now
    large = torch.zeros(1 << 20, device=HERE)
    part = large[:10]
    assert MEMORY.now - before == 4 << 20 == MEMORY.peak - before, "views hold no memory"
    del large
    assert MEMORY.now - before == 4 << 20, "a part holds the whole"
    del part
    assert MEMORY.now == before
    print("\n".join(wrong))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
