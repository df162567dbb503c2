"""Trainings in styles that are hard to count from outside. Each prints its own count.

``step N samples M`` after every step, where M are this rank's samples.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

style = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
rows = torch.Generator().manual_seed(100 + rank)


def wrapped(model: nn.Module) -> nn.Module:
    return DistributedDataParallel(model)


def told(step: int, samples: int) -> None:
    print(f"step {step} samples {samples}", flush=True)


class Named(nn.Module):
    """Called with names, as Hugging Face's models are."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50)

    def forward(self, *, mask: Tensor, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        out = self.head(self.table(input_ids))
        return {"loss": nn.functional.cross_entropy(out.flatten(0, 1), labels.flatten())}


class Around(nn.Module):
    """A module without a length. If it is compiled, torch's wrapper asks it for its length."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]


class Awkward(nn.Sequential):
    """A model that says no more of itself than a training asks, and something else than usual."""

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    def __len__(self) -> int:
        raise NotImplementedError

    def __eq__(self, _: object) -> bool:
        raise TypeError("not comparable")

    __hash__ = nn.Module.__hash__

    def __repr__(self) -> str:
        raise TypeError("no words")

    def __iter__(self) -> Iterator[nn.Module]:
        raise TypeError("not iterable")

    def parameters(self, _: bool = True) -> Any:  # groups, as optimizers take them
        return [{"params": list(super().parameters()), "lr": 1e-3}]

    def forward(self, x: Tensor) -> Tensor:
        for layer in self._modules.values():
            x = layer(x)  # type: ignore[misc]
        return x


class Packed(Tensor):
    """Codes that know nothing but how to be decoded."""

    codes: Tensor

    @staticmethod
    def __new__(cls, codes: Tensor) -> Packed:
        made = Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)  # type: ignore[attr-defined]
        made.codes = codes
        return made  # type: ignore[no-any-return]

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"decode it first, before {func}")


class Decoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x: Packed) -> Tensor:
        return self.layer(x.codes.float())  # type: ignore[no-any-return]


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.LazyLinear(32)
        self.turned = nn.Parameter(torch.randn(32, 32, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x).to(torch.cfloat) @ self.turned).abs()  # type: ignore[no-any-return]


class Stubborn(torch.optim.AdamW):
    """An optimizer that has no truth either, and raises in its third step."""

    calls = 0

    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        if self.calls == 3:
            raise FloatingPointError("not finite")
        return super().step(closure)

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    __len__ = __bool__


def plain(model: nn.Module, size: int, steps: range) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for step in steps:
        many = size + step % 3 if style == "ragged" else size
        loss = model(torch.randn(many, 32, generator=rows)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        told(step, many)


def main() -> None:  # noqa: C901  (a branch for each style)
    forever = range(10**6)
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    if style in ("plain", "ragged"):
        plain(wrapped(net), 8, forever)
    elif style == "compiled":
        plain(wrapped(torch.compile(Around(net), backend="eager")), 8, forever)
    elif style == "awkward":
        model = Awkward(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
        several = list(nn.Module.parameters(model))
        optimizer = Stubborn(model.parameters())
        for step in forever:
            loss = model(torch.randn(8, 32, generator=rows)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in several:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
            with suppress(FloatingPointError):
                optimizer.step()
            told(step, 8)
    elif style == "unread":
        model = wrapped(Decoding())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in forever:
            model(Packed(torch.randint(-9, 9, (8, 32), generator=rows))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            told(step, 8)
    elif style == "searched":  # the optimizer evaluates the loss any number of times
        model = wrapped(net.double())
        optimizer = torch.optim.LBFGS(
            model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe"
        )
        for step in forever:
            x = torch.randn(8, 32, generator=rows).double()

            def ask(x: Tensor = x) -> Tensor:
                optimizer.zero_grad()
                loss = model(x).sub(x.sin()).square().mean()
                loss.backward()
                agreed = loss.detach()
                dist.all_reduce(agreed)
                return agreed

            optimizer.step(ask)
            told(step, 8)
    elif style == "met late":  # called before wrapping; lazy, unused, complex and empty parts
        net = Late()
        net(torch.randn(2, 32))
        model = wrapped(net)
        plain(model, 8, forever)
    elif style == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(net[0])
        fully_shard(net)
        plain(net, 8, forever)
    elif style == "region":
        from harness import measured

        plain(nn.Linear(32, 1), 4, range(20))
        with measured():
            plain(wrapped(net), 8, forever)
    elif style == "named":
        model = wrapped(Named())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in forever:
            ids = torch.randint(0, 50, (6, 12), generator=rows)
            mask = torch.ones_like(ids)  # the same for all samples
            model(mask=mask, input_ids=ids, labels=ids)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
            told(step, 6)
    elif style == "two optimizers":
        model = wrapped(net)
        first, last = list(net.parameters())[:2], list(net.parameters())[2:]
        both = torch.optim.SGD(first, lr=0.1), torch.optim.AdamW(last)
        for step in forever:
            model(torch.randn(8, 32, generator=rows)).square().mean().backward()
            for optimizer in both:
                optimizer.step()
                optimizer.zero_grad()
            told(step, 8)
    elif style == "estimates":

        class Policy(nn.Sequential):
            def forward(self, x: Tensor) -> Tensor:
                with torch.set_grad_enabled(len(x) == 8):  # estimates train nothing
                    return super().forward(x)

        model = wrapped(Policy(nn.Linear(32, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in forever:
            if step % 5 == 0:
                model(torch.randn(64, 32, generator=rows))
            model(torch.randn(8, 32, generator=rows)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            told(step, 8)
    elif style == "in backward":
        made = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}

        def update(p: Tensor) -> None:
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
            made[p].step()
            made[p].zero_grad()

        for p in net.parameters():
            p.register_post_accumulate_grad_hook(update)
        for step in forever:
            net(torch.randn(8, 32, generator=rows)).square().mean().backward()
            told(step, 8)
    elif style == "gan":
        maker, critic = wrapped(nn.Linear(4, 32)), wrapped(nn.Linear(32, 1))
        made, judged = (torch.optim.Adam(m.parameters()) for m in (maker, critic))
        for step in forever:
            noise = torch.randn(8, 4, generator=rows)
            real = torch.randn(8, 32, generator=rows)
            judged.zero_grad()
            with torch.no_grad():
                fake = maker(noise)
            (critic(fake).mean() - critic(real).mean()).backward()
            judged.step()
            made.zero_grad()
            (-critic(maker(noise))).mean().backward()
            made.step()
            told(step, 8)


main()
