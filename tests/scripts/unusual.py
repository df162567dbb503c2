"""Correct trainings of unusual forms, and for each a mistake that tolerating the form may hide."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_gather, all_reduce, all_to_all_single
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("form")
parser.add_argument("--mistake", action="store_true")
asked = parser.parse_args()
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
CLASSES = 16


def average(parameters: list[Tensor]) -> None:
    for p in parameters:
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad /= world


def batches():  # type: ignore[no-untyped-def]
    data = TensorDataset(torch.randn(2048, 64), torch.randint(0, CLASSES, (2048,)))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 16, sampler=sampler)
    for epoch in range(50):
        sampler.set_epoch(epoch)
        yield from loader


def body() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))


def heads_by_rank() -> None:
    """One trunk and a head for each language; ranks take turns. Mistake: heads are not averaged."""
    trunk, heads = body(), nn.ModuleList([nn.Linear(64, CLASSES), nn.Linear(64, 2 * CLASSES)])
    shared = [*trunk.parameters(), *heads.parameters()]
    optimizer = torch.optim.Adam(shared, lr=1e-3)
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        cross_entropy(heads[(rank + step) % 2](trunk(x)), y).backward()
        average([*trunk.parameters()] if asked.mistake else shared)
        optimizer.step()


def experts() -> None:
    """Each rank has an expert of its own. Mistake: the trunk is not averaged."""
    trunk, head = nn.Linear(64, 64), nn.Linear(64, CLASSES)
    torch.manual_seed(1 + rank)
    expert = body()
    torch.manual_seed(0)
    shared = [*trunk.parameters(), *head.parameters()]
    optimizer = torch.optim.AdamW([*shared, *expert.parameters()], lr=1e-3)
    for x, y in batches():
        h = trunk(x)
        sent = all_to_all_single(torch.empty_like(h), h)
        h = h + all_to_all_single(torch.empty_like(h), expert(sent))
        optimizer.zero_grad()
        cross_entropy(head(h), y).backward()
        average([*head.parameters()] if asked.mistake else shared)
        for p in expert.parameters():
            p.grad /= world
        optimizer.step()


class PartialClasses(nn.Module):
    """A share of the classes on each rank, for the samples of all (insightface's Partial FC)."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(CLASSES // world, 64) / 8)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        gathered = torch.cat(all_gather(features)) if world > 1 else features
        parts = [torch.empty_like(labels) for _ in range(world)]
        dist.all_gather(parts, labels)
        every, first = torch.cat(parts), rank * len(self.weight)
        here = (every >= first) & (every < first + len(self.weight))
        logits = gathered @ self.weight.T
        chosen = logits.gather(1, (every - first).clamp(0, len(self.weight) - 1)[:, None])[:, 0]
        total, right = logits.exp().sum(1), chosen * here
        if world > 1:
            total, right = all_reduce(total), all_reduce(right)
        return (total.log() - right).mean()


def partial_classes() -> None:
    """Mistake: the backbone is called past its DistributedDataParallel."""
    net = DistributedDataParallel(body())
    classes = PartialClasses()
    optimizer = torch.optim.SGD([*net.parameters(), *classes.parameters()], lr=1e-2)
    for x, y in batches():
        optimizer.zero_grad()
        classes(net.module(x) if asked.mistake else net(x), y).backward()
        optimizer.step()


def plain_tensors() -> None:
    """No module at all. Mistake: nobody averages gradients."""
    w, b = (torch.randn(64, CLASSES) / 8).requires_grad_(), torch.zeros(CLASSES).requires_grad_()
    optimizer = torch.optim.SGD([w, b], lr=0.05)
    for x, y in batches():
        optimizer.zero_grad()
        cross_entropy(x @ w + b, y).backward()
        if not asked.mistake:
            average([w, b])
        optimizer.step()


def functional() -> None:
    """Gradients of a functional call. Mistake: nobody averages them."""
    model = nn.Sequential(body(), nn.Linear(64, CLASSES))
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained = {name: p.requires_grad_() for name, p in parameters.items()}
    optimizer = torch.optim.Adam(trained.values(), lr=1e-3)

    def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    gradients = torch.func.grad(loss_of)
    for x, y in batches():
        for name, grad in gradients({k: v.detach() for k, v in trained.items()}, x, y).items():
            trained[name].grad = grad
        if not asked.mistake:
            average([*trained.values()])
        optimizer.step()
        optimizer.zero_grad()


def shards_by_hand() -> None:
    """ZeRO 1 in a few lines: each optimizer has a shard. Mistake: shards are not gathered."""
    model = nn.Sequential(body(), nn.Linear(64, CLASSES))
    parameters = list(model.parameters())
    flat = torch.cat([p.detach().flatten() for p in parameters])
    size = len(flat) // world
    shard = nn.Parameter(flat[rank * size :][:size].clone())
    optimizer = torch.optim.Adam([shard], lr=1e-3)
    for x, y in batches():
        model.zero_grad()
        cross_entropy(model(x), y).backward()
        grad = torch.cat([p.grad.flatten() for p in parameters])
        dist.all_reduce(grad)
        shard.grad = grad[rank * size :][:size] / world
        optimizer.step()
        whole = flat.clone()
        if asked.mistake:
            whole[rank * size :][:size] = shard.detach()
        else:
            dist.all_gather_into_tensor(whole[: size * world], shard.detach())
        torch.nn.utils.vector_to_parameters(whole, parameters)


class Trainer(nn.Module):
    """Its call is the whole training. Mistake: its model is not averaged."""

    def __init__(self) -> None:
        super().__init__()
        model = nn.Sequential(body(), nn.Linear(64, CLASSES))
        self.model = model if asked.mistake else DistributedDataParallel(model)

    def forward(self) -> None:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        for x, y in batches():
            optimizer.zero_grad()
            cross_entropy(self.model(x), y).backward()
            optimizer.step()


def frozen_half() -> None:
    """A discriminator is frozen while the generator trains. Mistake: its gradients are reduced
    again, many times over.
    """
    made, told = body(), nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 1))
    generator, discriminator = DistributedDataParallel(made), DistributedDataParallel(told)
    optimizers = [torch.optim.Adam(p.parameters(), lr=1e-4) for p in (generator, discriminator)]
    for x, _ in batches():
        told.requires_grad_(False)
        optimizers[0].zero_grad()
        (-discriminator(generator(x)).mean()).backward()
        optimizers[0].step()
        told.requires_grad_(True)
        optimizers[1].zero_grad()
        discriminator(generator(x).detach()).mean().backward()
        for p in told.parameters() if asked.mistake else ():
            for _ in range(2):
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizers[1].step()


class Module(nn.Module):
    """Its forward pass is a step with two optimizers, as in Lightning's manual optimization.
    Mistake: the second one's half is outside of DistributedDataParallel.
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = body(), nn.Linear(64, CLASSES)
        wrap = (lambda part: part) if asked.mistake else DistributedDataParallel
        self.halves = [DistributedDataParallel(self.first), wrap(self.second)]
        self.optimizers = [torch.optim.SGD(p.parameters(), lr=1e-2) for p in self.halves]

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        first, second = self.halves
        self.optimizers[0].zero_grad()
        first(x).square().mean().backward()
        self.optimizers[0].step()
        loss = x.new_zeros(())
        for _ in range(2):
            self.optimizers[1].zero_grad()
            loss = cross_entropy(second(first(x).detach()), y)
            loss.backward()
            self.optimizers[1].step()
        return loss.detach()


def manual() -> None:
    module = Module()
    for x, y in batches():
        module(x, y)


def wrapped_eval() -> None:
    """An average is evaluated now and then. Mistake: what DDP wraps stays in eval mode."""
    net = nn.Sequential(body(), nn.Dropout(0.1), nn.Linear(64, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        if step % 3 == 2:
            net.eval()
            with torch.no_grad():
                net(x)
            net.train(not asked.mistake)


def armed() -> None:
    """The loss is computed past DDP, whose reducer was armed by a call with an integer, as in
    RecBole. Mistake: it is not armed.
    """
    net = nn.Sequential(body(), nn.Linear(64, CLASSES))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for x, y in batches():
        optimizer.zero_grad()
        unused = torch.zeros(())
        if world > 1 and not asked.mistake:
            forward, net.forward = net.forward, lambda x: x
            model(torch.tensor([0]))
            net.forward = forward
            unused = sum((p.sum() * 0 for p in net.parameters()), unused)
        (cross_entropy(net(x), y) + unused).backward()
        optimizer.step()


dist.init_process_group("gloo")
torch.manual_seed(0)
{
    "heads by rank": heads_by_rank, "experts": experts, "partial classes": partial_classes,
    "plain tensors": plain_tensors, "functional": functional, "shards by hand": shards_by_hand,
    "trainer": lambda: Trainer()(), "wrapped eval": wrapped_eval, "frozen half": frozen_half,
    "manual": manual, "armed": armed,
}[asked.form]()  # fmt: skip
