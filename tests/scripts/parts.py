"""A DDP loop of 64 samples per step in total, one part of which varies: frozen, sharded, lazy."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("part", choices=[
    "teacher", "sharded optimizer", "head", "lazy", "lazy everywhere", "workers", "unsplit",
    "split", "histograms", "augments", "flat shards", "cut layers", "twice", "unsplit, accumulated",
    "gathers",
])  # fmt: skip
parser.add_argument("--divide", action="store_true", help="one batch shared by all ranks")
part = parser.parse_args().part
divide = parser.parse_args().divide
ROWS = 2048
ENDLESS = ("split", "unsplit", "unsplit, accumulated")


class Lazy(torch.optim.SGD):
    """Leaves three of four updates out where it is told to."""

    calls = 0
    told = False

    def step(self, closure=None):  # type: ignore[no-untyped-def]
        self.calls += 1
        return None if self.told and self.calls % 4 else super().step(closure)


class Endless(IterableDataset[torch.Tensor]):
    """Numbers of its own for each rank, and for each worker if they are split."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):  # type: ignore[no-untyped-def]
        worker = torch.utils.data.get_worker_info()
        place = worker.id if worker is not None and part == "split" else 0
        draw = torch.Generator().manual_seed(100 * self.rank + place)
        while True:
            yield torch.randn(64, generator=draw)


class Summed(torch.autograd.Function):
    """The sum over all ranks of what each has a part of."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad


class Cut(nn.Module):
    """Two layers of which each rank has its columns, then its rows."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__()
        self.wide = nn.Parameter(0.1 * torch.randn(512, 64).chunk(world)[rank])
        self.back = nn.Parameter(0.05 * torch.randn(8, 512).chunk(world, 1)[rank])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = torch.relu(x @ self.wide.T) @ self.back.T
        return Summed.apply(inside)  # type: ignore[no-any-return,no-untyped-call]


class Gathers(nn.Module):
    """Features of all ranks, as of contrastive losses, and nothing that exchanges gradients."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        every = [torch.empty_like(out) for _ in range(dist.get_world_size())]
        dist.all_gather(every, out.detach())
        return out


class Noisy(TensorDataset):
    """Draws a number for each of its samples, as augmentations do."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        (row,) = super().__getitem__(number)
        return (row * (1 + 0.01 * torch.rand(()).item()),)


def placed(inner: nn.Module, rank: int, world: int) -> nn.Module:
    """How the model lies on the ranks."""
    if part == "flat shards":
        return FullyShardedDataParallel(inner, device_id=torch.device("cpu"))
    if part == "gathers":
        return Gathers(inner)
    return Cut(rank, world) if part == "cut layers" else DistributedDataParallel(inner)


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    several = world > 1
    rows = torch.randn(ROWS, 64)
    data = (Noisy if part == "augments" else TensorDataset)(rows)
    sampler: DistributedSampler[object] | None = DistributedSampler(data)
    workers = 2 if several and part == "workers" else 0
    if part in ENDLESS:
        data, sampler, workers = Endless(rank), None, 2
    if part == "cut layers":
        sampler = DistributedSampler(data, num_replicas=1, rank=0)
    batch = 64 // world if divide else 64
    loader = DataLoader(data, batch, sampler=sampler, num_workers=workers, drop_last=True)
    teacher = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 8))
    teacher.eval().requires_grad_(False)
    inner = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    if part == "head":
        inner[0].requires_grad_(False)
    model = placed(inner, rank, world)
    trained = [p for p in model.parameters() if p.requires_grad]
    if part == "sharded optimizer":
        optimizer = ZeroRedundancyOptimizer(trained, optimizer_class=torch.optim.AdamW)
    elif part in ("lazy", "lazy everywhere"):
        optimizer = Lazy(trained, lr=0.01)
        optimizer.told = several or part == "lazy everywhere"
    else:
        optimizer = torch.optim.SGD(trained, lr=0.01)
    passes = {"head": 4, "unsplit, accumulated": 3}.get(part, 1)
    for epoch in range(1000):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for number, batch_of in enumerate(loader):
            x = batch_of if part in ENDLESS else batch_of[0]
            if part == "histograms" and not several:  # logged where it delays nobody
                torch.randn(200_000).sort()
            with torch.no_grad():
                wanted = teacher(x) if part == "teacher" else x[:, :8]
            if part == "twice":
                nn.functional.mse_loss(model(x), wanted).backward()
                optimizer.zero_grad()  # where a separate training step would be
            (nn.functional.mse_loss(model(x), wanted) / passes).backward()
            if number % passes == passes - 1:
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
