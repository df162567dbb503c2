"""Trainings with a defect that users reported in public trackers; ``CASE right`` has none.

The first words of each case name the reports: Lightning#1884 (workers), Neuron_SP#73 (barriers),
transformers#47340 (lengths), Lightning#20404 (shards), ultralytics#18616 (loss), mmdetection#2539
(statistics), open_clip#616 (saves), pytorch#31245 (garbage), transformers#30702 (objects),
PyMarlin#80 (passes). The others are kinds that a reviewer found in trackers: debugging modes, large
buffers, a schedule that steps once for each rank, ranks that prepare all samples, and averages of
weights that are made one parameter at a time, a new iterator in each step, gc.collect() in each step,
one all-reduce for each parameter, all-reduces after the backward pass, means of means over targets, gradients that are clipped before they
are exchanged, an epoch that does not reach the loader's workers, losses that are added up with their
graphs, gradients that are clipped before they are unscaled, a collective without a gradient within
the loss, ranks that are pinned to one core, and ranks that decide alone when to stop.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

case, right = sys.argv[1], sys.argv[2:] == ["right"]
wrong = not right
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
generator = torch.Generator().manual_seed(7)
ROWS = torch.randn(64 * 8 * world, 64, generator=generator)
BATCH = 64


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Rows with labels. A worker process opens an index before it reads its first row."""

    opened = case != "workers"

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        if not self.opened:
            time.sleep(0.2)  # the time that opening takes
            self.opened = True
        return ROWS[number], ROWS[number, :10].argmax()


class Epochs(Rows):
    """Rows in an order that depends on the epoch, which processes share in the right training."""

    opened = True

    def __init__(self) -> None:
        self.epoch = torch.zeros(1, dtype=torch.int64)
        if right:
            self.epoch.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        self.epoch.fill_(epoch)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        row = ROWS[(number + 37 * int(self.epoch)) % len(ROWS)]
        return row, row[:10].argmax()


class Texts(Rows):
    """Sequences of vectors, of one length in the right training."""

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        length = 64 if right else 4 << (number % 6)
        return ROWS[number].repeat(length, 1), ROWS[number, :10].argmax()


class Shards(IterableDataset[tuple[Tensor, Tensor]]):
    """Shards of rows, the one of rank 1 with fewer of them."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        own = torch.Generator().manual_seed(100 + rank)
        for _ in range((12 - 2 * rank * wrong) * BATCH):
            row = torch.randn(64, generator=own)
            yield row, row[:10].argmax()


class Shift(nn.Module):
    """A layer with many parameters and little compute, so that the exchange takes most time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(16_000_000))

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.weight.mean()


class Mean(nn.Module):
    """The mean over the positions of a sequence."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    rows = nn.utils.rnn.pad_sequence([row for row, _ in samples], batch_first=True)
    return rows, torch.stack([label for _, label in samples])


class Skipping(IterableDataset[tuple[Tensor, Tensor]]):
    """Rows that every rank prepares, and of which it keeps every ``world``-th."""

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number, row in enumerate(ROWS):
            if right and number % world != rank:
                continue
            prepared = sum(float(x) for _ in range(12) for x in row) * 0.0 + row
            if number % world == rank:
                yield prepared, row[:10].argmax()


def loader() -> DataLoader[tuple[Tensor, Tensor]]:
    if case in ("shards", "passes"):
        return DataLoader(Shards(), batch_size=BATCH)
    if case == "skipping":
        return DataLoader(Skipping(), batch_size=BATCH)
    data = {"lengths": Texts, "epochs": Epochs}.get(case, Rows)()
    return DataLoader(
        data,
        batch_size=4 if case == "lengths" else BATCH,
        sampler=DistributedSampler(data, shuffle=case != "epochs"),
        drop_last=True,
        num_workers=int(case in ("workers", "epochs")),
        persistent_workers=case == "epochs" or (case == "workers" and right),
        collate_fn=padded if case == "lengths" else None,
    )


body: list[nn.Module] = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.Linear(64, 10)]
if case == "lengths":
    body = [nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64), Mean(), nn.Linear(64, 10)]
if case == "after backward":
    body.insert(0, Shift())
if case == "statistics":
    body.insert(0, nn.BatchNorm1d(64))
network = nn.Sequential(*body)
if case == "buffers":
    network.register_buffer("grid", torch.randn(1_000_000), persistent=right)
if case == "pinned" and wrong:
    os.sched_setaffinity(0, {0})
if case == "anomaly" and wrong:
    torch.autograd.set_detect_anomaly(True)
copies = right if case == "statistics" else case != "buffers" or wrong
model: nn.Module = network
if case not in ("one by one", "clipped") and (case != "after backward" or right):
    model = DistributedDataParallel(network, broadcast_buffers=copies)
stepped = torch.optim.SGD if case == "after backward" else torch.optim.AdamW
optimizer = stepped(model.parameters(), lr=1e-3)
batches = loader()
decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
average = [parameter.detach().clone() for parameter in model.parameters()] * 200
weights = torch.zeros(8_000_000)
circles: list[object] = []
for _ in range(200_000 if case in ("garbage", "collecting") else 0):
    circle: list[object] = []
    circle.append(circle)
    circles.append(circle)
if case in ("garbage", "collecting") and right:
    gc.freeze()
scaler = torch.amp.GradScaler("cpu", enabled=case == "scaled")
step = 0
loss = torch.zeros(())
total = torch.zeros(())
for epoch in range(10**6):
    if isinstance(batches.sampler, DistributedSampler):
        batches.sampler.set_epoch(epoch)
    if isinstance(batches.dataset, Epochs):
        batches.dataset.set_epoch(epoch)
    drawn = [next(iter(batches))] if case == "iterators" and wrong else batches
    for rows, labels in drawn:
        step += 1
        for _ in range(4 * (case == "barriers" and wrong)):
            dist.barrier()
        if case == "objects" and (wrong or step % 16 == 0):
            dist.all_gather_object([None] * world, list(range(20_000)))
        optimizer.zero_grad()
        if case == "targets":
            labels = torch.where(torch.rand(BATCH) < 0.3 + 0.4 * rank, labels, -100)
        loss = nn.functional.cross_entropy(model(rows), labels)
        if case == "targets" and right:
            number = (labels != -100).sum()
            dist.all_reduce(number)
            loss = nn.functional.cross_entropy(model(rows), labels, reduction="sum")
            loss = loss * world / number
        if case == "reduced":
            mean = model(rows).mean(0)
            if right:
                mean = differentiable.all_reduce(mean)
            else:
                dist.all_reduce(mean)
            loss = loss + mean.square().sum() * 1e-3
        if case == "loss" and wrong:
            loss = loss * world
        if case == "divided":  # right as well: the gradients are summed
            loss = loss / world
        scaler.scale(loss).backward()
        if case == "graphs":
            total = total + (loss if wrong else loss.detach())
        if case == "scaled":
            if right:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        if case == "divided":
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(world)
        if case == "collecting" and wrong:
            gc.collect()
        if case == "clipped" and wrong:
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        if case == "after backward" and wrong:
            pending = [
                dist.all_reduce(parameter.grad.div_(world), async_op=True)
                for parameter in network.parameters()
                if parameter.grad is not None
            ]
            for work in pending:
                work.wait()
        if case in ("one by one", "clipped"):
            gradients = [p.grad for p in network.parameters() if p.grad is not None]
            joined = right or case == "clipped"
            flat = [torch.cat([g.flatten() for g in gradients])] if joined else gradients
            for gradient in flat:
                dist.all_reduce(gradient.div_(world))
            if joined:
                parts = flat[0].split([g.numel() for g in gradients])
                for gradient, part in zip(gradients, parts, strict=True):
                    gradient.copy_(part.view_as(gradient))
        if case == "clipped" and right:
            nn.utils.clip_grad_norm_(network.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        if case == "stops" and world > 1 and step == 20 + 4 * rank:
            sys.exit()
        for _ in range((world if wrong else 1) * (case == "schedule")):
            decay.step()
        if case == "average" and wrong:
            for mean, parameter in zip(average, list(model.parameters()) * 200, strict=True):
                mean.lerp_(parameter.detach(), 0.01)
        if case == "saves" and wrong and step % 8 == 0:
            torch.save(weights, f"weights{rank}.pt")
        if case == "garbage" and step % 8 == 0:
            gc.collect()
    if case == "shards":
        dist.all_reduce(loss.detach())
