"""A usual DDP loop with one mistake, if one is requested; with ``--right`` correct code that
resembles that mistake.
"""

import argparse
import copy
import os
import random
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

parser = argparse.ArgumentParser()
parser.add_argument("--mistake", default="")
parser.add_argument("--right", action="store_true")
parser.add_argument("--rows", type=int, default=512)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--global-batch", type=int, default=0)
parser.add_argument("--epochs", type=int, default=100)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--compile", action="store_true")
parser.add_argument("--unseeded", action="store_true")
parser.add_argument("--kept", type=Path)
asked = parser.parse_args()


class Half(nn.Sequential):
    """Trains on the first half of its rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = super().forward(x[: len(x) // 2])
        return torch.cat([out, out.detach()])


class Whitened(nn.Sequential):
    """Reduces what features have in common over all ranks, as Barlow Twins and SyncBatchNorm do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self[1](self[0](x))
        common = features.T @ features / len(x)
        dist.all_reduce(common)
        return self[2](features / (1 + common.diagonal()))


class Drawn(TensorDataset):
    """Makes up a sample by its number, as torchvision's FakeData does."""

    def __getitem__(self, number: int) -> tuple[torch.Tensor, ...]:
        state = torch.get_rng_state()
        torch.manual_seed(number)
        row = torch.randn(64)
        torch.set_rng_state(state)
        return row, self.tensors[1][number]


class Headed(nn.Sequential):
    """Its last layer is outside of what exchanges gradients, but for where that is right."""

    def __init__(self, *layers: nn.Module) -> None:
        body = nn.Sequential(*layers[:-1])
        several = dist.is_initialized() and not asked.right
        super().__init__(DistributedDataParallel(body) if several else body, layers[-1])


class Shared(torch.optim.AdamW):
    """Ranks share what it computes of its own, as Shampoo's do; or each rounds it in its own way."""

    def step(self, closure: Any = None) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        trained = [p for group in self.param_groups for p in group["params"]]
        for number, p in enumerate(trained):
            if number % world == rank and asked.mistake == "shared optimizer":
                rows = p.detach().reshape(len(p), -1)
                for _ in range(20):
                    rows @ rows.T
            if rank and asked.mistake == "rounded" and not self.state:
                p.data *= 1 + 1.2e-7
        super().step()


def main() -> None:  # noqa: C901  (one loop, as scripts have it, with a line for each mistake)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if asked.mistake != "wrong world":
        dist.init_process_group("gloo")
    if not asked.unseeded:  # many tutorials set no seed
        seeds = {"seeds": rank, "seeds of worlds": world}
        torch.manual_seed(seeds.get(asked.mistake, 0))
    several = world > 1 or asked.right
    kind = Drawn if asked.mistake == "drawn" else TensorDataset
    data = kind(torch.randn(asked.rows, 64), torch.randint(0, 10, (asked.rows,)))
    if asked.mistake == "split":
        drawn = torch.Generator().manual_seed(0 if asked.right else rank)
        data, _ = random_split(data, (0.5, 0.5), generator=drawn)
    batch = asked.global_batch // world if asked.global_batch else 32
    seed = (7 if asked.right else rank) if asked.mistake == "sampler seeds" else 0
    sampler = DistributedSampler(
        data, num_replicas=world, rank=rank, shuffle=not asked.global_batch, seed=seed
    )
    if asked.mistake == "same data" or asked.mistake == "wrong world":
        sampler = None
    loader = DataLoader(
        data,
        batch_size=batch // asked.accumulate,
        sampler=sampler,
        drop_last=asked.mistake != "short batches",
    )
    if asked.mistake == "budget":  # batches of equally many tokens, but not sentences
        draw, order, batches = random.Random(0), list(range(len(data))), []
        while order:
            size = draw.randint(8, 40)
            batches.append(order[:size])
            order = order[size:]
        loader = DataLoader(data, batch_sampler=batches[: len(batches) // 2 * 2][rank::world])
    layers = nn.Linear(64, asked.width), nn.ReLU(), nn.Linear(asked.width, 10)
    kinds = {
        "half": Half if several else nn.Sequential, "statistics": Whitened, "outside": Headed
    }  # fmt: skip
    model: nn.Module = kinds.get(asked.mistake, nn.Sequential)(*layers)
    if asked.mistake == "frozen" and several:
        layers[0].requires_grad_(False)
    inner = model
    if asked.mistake == "counted":  # counts its FLOPs with a copy on the meta device, as litgpt
        counted_copy = copy.deepcopy(model).to("meta")
        counted_copy(torch.empty(8, 64, device="meta")).square().mean().backward()
    if asked.mistake == "tried":  # YOLO finds the shapes of outputs this way
        x = torch.randn(2, 64)
        for layer in layers:
            x = layer(x)
    if asked.compile:
        model = torch.compile(model)
    bare = asked.mistake in ("no all-reduce", "wrong world")
    bare |= asked.mistake == "outside" and not asked.right
    average = copy.deepcopy(model).eval()
    if not bare and (asked.mistake != "seeds" or asked.right):
        model = DistributedDataParallel(model)
    checkpoint = Path("mine.pt") if asked.right else asked.kept  # each launch has its own copy
    if asked.mistake == "resumed" and checkpoint.is_file():
        inner.load_state_dict(torch.load(checkpoint))
    scale = nn.Parameter(torch.ones(()))  # e.g. of a loss: belongs to no module
    alone = [scale] if asked.mistake == "alone" else []
    left_out = 2 if asked.mistake == "head left out" else 0
    trained = list(model.parameters())
    make = Shared if asked.mistake in ("shared optimizer", "rounded") else torch.optim.AdamW
    optimizer = make([*trained[: len(trained) - left_out], *alone], lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    rest = TensorDataset(torch.randn(64, 64))
    rest_sampler = DistributedSampler(rest, num_replicas=world, rank=rank)
    rest_loader = DataLoader(rest, batch_size=4, sampler=rest_sampler)
    loss_of, done, counted, began = nn.CrossEntropyLoss(), 0, 0, time.perf_counter()
    kept: list[torch.Tensor] = []
    for epoch in range(asked.epochs):
        if sampler is not None and asked.mistake != "no set_epoch":
            sampler.set_epoch(epoch)
        for number, (x, y) in enumerate(loader):
            if asked.mistake == "idle" and rank:
                x = x[:0]
            if asked.mistake == "slow" and (rank or asked.right):
                time.sleep(0.02)
            if asked.mistake == "left behind" and asked.right and number % 3 == 0:
                continue  # on all ranks, and before its forward pass
            if asked.mistake == "cached":
                kept = kept or [x, y]
                x, y = kept
            if asked.mistake == "repeated" and several:
                x, y = x[:16].repeat(2, 1), y[:16].repeat(2)
            if asked.mistake == "shared out twice" and not asked.right:
                x, y = x.chunk(world)[rank], y.chunk(world)[rank]
            if asked.mistake == "left out":  # omits half of the drawn samples
                x, y = x[:16], y[:16]
            if asked.mistake == "cleared" and asked.right:  # the same samples twice, as in SAM
                kept = kept if number % asked.accumulate else [x, y]
                x, y = kept
            last = number % asked.accumulate == asked.accumulate - 1
            if asked.mistake == "short groups":  # as libraries accumulate
                last |= number + 1 == len(loader)
            skip = not last and asked.mistake != "no no_sync" and world > 1
            skip |= asked.mistake == "broadcast" and not asked.right
            with model.no_sync() if skip else torch.enable_grad():
                low = asked.mistake == "precision" and several
                with torch.autocast("cpu", torch.bfloat16, enabled=low):
                    call = asked.mistake == "statistics" and asked.right  # as Barlow Twins does
                    out = model.forward(x) if call else model(x)
                loss = loss_of(out.float(), y[: len(x)])
                if asked.mistake == "left behind" and not asked.right and number % 3 == rank:
                    continue  # e.g. an outlier
                if alone:
                    loss = loss * scale
                if asked.mistake != "undivided":
                    loss = loss / asked.accumulate
                if asked.mistake == "sum":
                    loss = loss * world
                if asked.mistake == "cleared":
                    optimizer.zero_grad()
                loss.backward()
            counted += len(x)
            if not last:
                continue
            if asked.mistake == "second all-reduce" and asked.right and world > 1:
                dist.all_reduce(loss.detach().clone())  # for the log
            elif asked.mistake == "second all-reduce" or (asked.right and bare):
                for p in inner.parameters():
                    dist.all_reduce(p.grad)
                    p.grad /= world
            if alone and asked.right and world > 1:
                dist.all_reduce(scale.grad)
                scale.grad /= world
            if asked.mistake == "skips" and (rank or asked.right) and done % 5 == 4:
                done += 1  # this rank omits a step
                continue
            optimizer.step()
            if asked.mistake == "steps twice":
                optimizer.step()
            if asked.mistake == "schedule" and (rank or asked.right):
                schedule.step()
            if asked.mistake == "no zero_grad" and asked.right:  # keeps error feedback
                for p in inner.parameters():
                    p.grad *= 0.5
            elif asked.mistake != "no zero_grad":
                optimizer.zero_grad()
            if asked.mistake == "broadcast":
                for p in inner.parameters():
                    dist.broadcast(p.detach(), 0)
            if asked.mistake == "evaluates" and (world == 1 or asked.right):
                with torch.no_grad():
                    inner(x)
            if asked.mistake == "validates":  # its sampler needs no set_epoch()
                model.eval()
                with torch.no_grad():
                    for (rest_x,) in rest_loader:
                        model(rest_x)
                model.train()
            if asked.mistake == "evaluates a copy" and (rank == 0 or asked.right):
                for _ in range(40 if done % 4 == 3 else 0):
                    with torch.no_grad():
                        average(x)
                    time.sleep(0.002)
            done += 1
            if asked.mistake == "resumed" and rank == 0:
                torch.save(inner.state_dict(), checkpoint)
            if asked.mistake == "saves" and not (asked.right and rank):
                torch.save(inner.state_dict(), f="last.pt")
            if done % 5 == 0 and rank == 0:
                rate = counted / (time.perf_counter() - began)
                print(f"step {done} samples {counted} rate {rate:.0f}/s", flush=True)


if __name__ == "__main__":
    main()
