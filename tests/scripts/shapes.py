"""DDP loops whose samples are not the rows of one tensor, and mistakes not visible in the data."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("shape", choices=[
    "images", "detection", "dicts", "time first", "ambiguous", "packed", "graph", "two inputs",
    "views", "no loader", "recurrent", "padded", "graphs", "nodes",
])  # fmt: skip
parser.add_argument("--mistake", default="")
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--divide", action="store_true", help="one batch shared by all ranks")
parser.add_argument("--fsdp", action="store_true")
parser.add_argument("--steps", type=int, default=2000)
asked = parser.parse_args()
WIDTH, TIME = 32, 35


class Data(Dataset[torch.Tensor]):
    """Images of 3 channels, 8 by 8; with a mistake ranks see other crops of the same ones."""

    def __init__(self, augment: int) -> None:
        self.images = torch.randn(512, 3, 8, 8)
        self.draw = torch.Generator().manual_seed(augment)
        self.augments = asked.mistake.startswith("augmented")

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> torch.Tensor:
        noise = 0.01 * torch.randn(3, 8, 8, generator=self.draw) if self.augments else 0.0
        return self.images[number] + noise


class MadeUp(Dataset[torch.Tensor]):
    """Stores nothing: each rank draws numbers of its own."""

    def __len__(self) -> int:
        return 512

    def __getitem__(self, number: int) -> torch.Tensor:
        return torch.randn(3, 8, 8)


class Padded:
    """Images of one size in a batch, and of another one in the next, as in DETR."""

    def __init__(self, images: torch.Tensor) -> None:
        self.side = 4 + int(torch.randint(8, (), generator=SIDES))
        self.images = nn.functional.interpolate(images, size=(self.side, self.side))
        self.mask = torch.zeros(len(images), self.side, self.side, dtype=torch.bool)


class Graphs:
    """A batch of graphs as PyTorch Geometric has it: all nodes are rows, edges are pairs of them."""

    def __init__(self, images: torch.Tensor) -> None:
        sizes = [2 + int(8 * abs(float(image[0, 0, 0]))) % 9 for image in images]
        rows = [image.reshape(1, -1).repeat(n, 1) for image, n in zip(images, sizes, strict=True)]
        self.edge_index = torch.randint(sum(sizes), (2, 64), generator=SIDES)
        self.x = torch.cat(rows)
        self.ptr = torch.tensor([0, *sizes]).cumsum(0)
        self.batch = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        self.num_nodes = len(self.x)

    @staticmethod
    def of(images: list[torch.Tensor]) -> "Graphs":
        return Graphs(torch.stack(images))


SIDES = torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))


class Net(nn.Module):
    """One layer that is computed on whatever shape the samples have."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(10, 10) if asked.mistake == "branches" else None
        self.stem = nn.Conv2d(3, 3, 3, padding=1) if asked.shape == "padded" else None
        self.cells = nn.LSTM(16, 192) if asked.shape == "recurrent" else None  # time comes first
        self.layers = nn.Sequential(nn.Linear(192, WIDTH), nn.Dropout(0.1), nn.Linear(WIDTH, 10))

    def forward(self, x, targets=None, graph=None):  # type: ignore[no-untyped-def]
        if isinstance(x, list | tuple) and asked.shape == "two inputs":
            x = x[0] + x[1]
        elif isinstance(x, list | tuple):
            x = torch.stack([i["image"] if isinstance(i, dict) else i for i in x])
        elif asked.shape in ("time first", "ambiguous"):
            x = x.transpose(0, 1)[:, :1].expand(-1, 192, -1)[..., 0]
        elif self.stem is not None:
            x = nn.functional.adaptive_avg_pool2d(self.stem(x.images), 8)
        elif self.cells is not None:
            x = self.cells(x)[0][-1]
        elif asked.shape == "packed":
            x = x[0].reshape(-1, 192)
        elif asked.shape == "graphs":
            x = x.x
        elif asked.shape == "graph":
            x = x.repeat(1, 192 // x.shape[1])
        return self.layers(x.reshape(len(x), -1))


def shaped(x: torch.Tensor):  # type: ignore[no-untyped-def]
    """The arguments of a call."""
    rows = x.reshape(len(x), -1) if isinstance(x, torch.Tensor) else x
    return {
        "images": lambda: (list(x),),
        "detection": lambda: (list(x), [{"box": i.mean()} for i in x]),
        "dicts": lambda: ([{"image": i} for i in x],),
        "time first": lambda: (rows[:, :TIME].t()[..., None],),
        "ambiguous": lambda: (rows[:, : 2 * len(x)].t()[..., None],),
        "packed": lambda: (rows.reshape(1, -1),),
        "graphs": lambda: (x,),
        "nodes": lambda: (x.x, x.edge_index, x.batch),
        "graph": lambda: (rows.reshape(-1, 64)[:-1],),
        "two inputs": lambda: ([rows, rows.flip(1)],),
        "views": lambda: (torch.cat([rows, rows.flip(1)]),),
        "no loader": lambda: (list(x),),
        "padded": lambda: (Padded(x),),
        "recurrent": lambda: (rows.reshape(len(x), 12, 16).transpose(0, 1),),
    }[asked.shape]()


def main() -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    mistakes = asked.mistake
    own_data = mistakes in ("own data", "made up")
    torch.manual_seed(rank if own_data else 0)
    data = MadeUp() if mistakes == "made up" else Data(rank)
    batch = asked.batch // world if asked.divide else asked.batch
    sampler = None
    draw = torch.Generator().manual_seed(rank if mistakes == "shuffled apart" else 0)
    alone = own_data or mistakes in (
        "augmented",
        "shuffled apart",
        "augmented, shuffled",
        "same data",
    )
    # "augmented, sampled", "all evaluate" and "branches" are correct
    if not alone:
        sampler = DistributedSampler(data, num_replicas=world, rank=rank)
    shuffles = mistakes in ("augmented, shuffled", "shuffled apart")
    loader = DataLoader(
        data, batch, sampler=sampler, shuffle=shuffles if alone else None, generator=draw,
        drop_last=True, collate_fn=Graphs.of if asked.shape in ("graphs", "nodes") else None,
    )  # fmt: skip
    if mistakes == "peeks":  # correct: reads the shape, as tutorials do
        next(iter(loader))
    torch.manual_seed(0)
    model: nn.Module = Net()
    if own_data:
        torch.manual_seed(rank)
    if asked.fsdp:
        fully_shard(model)
    else:
        model = DistributedDataParallel(
            model, find_unused_parameters=mistakes in ("searches", "branches")
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    noise = torch.zeros(batch, 3, 8, 8, requires_grad=True)
    attack = torch.optim.SGD([noise], lr=0.1) if mistakes == "attacks" else None
    done = epoch = 0
    while done < asked.steps:
        if sampler is not None and mistakes != "no set_epoch":
            sampler.set_epoch(epoch)
        epoch += 1
        batches = data.images.split(batch) if asked.shape == "no loader" else loader
        if asked.shape == "recurrent":
            batches = data.images[rank::world].split(batch)  # its own loop, without a loader
        for x in batches:
            if attack is not None:  # correct: trains a perturbation against a model in eval mode
                model.module.eval()
                attack.zero_grad()
                (-model.module(*shaped(x + noise)).square().mean()).backward()
                attack.step()
                model.module.train()
                x = (x + noise).detach()
            optimizer.zero_grad()
            model(
                *shaped(x + 1e-3 * done if asked.shape == "no loader" else x)
            ).square().mean().backward()
            optimizer.step()
            done += 1
            evaluates = mistakes == "all evaluate" or (mistakes == "rank 0 evaluates" and rank == 0)
            if (evaluates or mistakes == "never trains again") and done % 4 == 0:
                inner = model.module if hasattr(model, "module") else model
                inner.eval()
                with torch.no_grad():
                    inner(*shaped(x))
                if mistakes != "never trains again":
                    inner.train()
                else:
                    model.eval()


if __name__ == "__main__":
    main()
