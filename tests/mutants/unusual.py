"""Small models as people write them: each kind has one feature that the shipped models lack.

They have four blocks, so that a pipeline can cut them into four stages.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from harness import labels, uniform

SIZES = {"nano": dict(d=64, classes=16, batch=8)}
KNOBS = dict(kind="mask")

#: The function that builds each kind, by its name.
KINDS: dict[str, Callable[[int], Any]] = {}


def kind(build: Callable[[int], Any]) -> Callable[[int], Any]:
    """Register a function that builds the layers before the head, under its own name."""
    KINDS[build.__name__] = build
    return build


class Layer(nn.Module):
    """A module whose forward pass is a function, ``forward(self, x)``."""

    def __init__(self, forward: Callable[..., Any], **members: Any) -> None:
        super().__init__()
        self.function = forward
        for name, member in members.items():
            if isinstance(member, Tensor) and not isinstance(member, nn.Parameter):
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, x: Tensor) -> Any:
        return self.function(self, x)


def linear(d: int) -> nn.Linear:
    return nn.Linear(d, d)


def frozen(module: nn.Module) -> nn.Module:
    return module.requires_grad_(False)


def after(layer: nn.Module, d: int) -> nn.Sequential:
    """A layer that follows a trained one."""
    return nn.Sequential(linear(d), nn.ReLU(), layer)


# Buffers.


@kind
def mask(d: int) -> nn.Module:
    """Attention under a causal mask that is a buffer, as in nanoGPT."""

    def forward(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.view(len(x), -1, 4)).chunk(3, -1)
        seen = (q @ k.transpose(1, 2)).masked_fill(self.causal == 0, float("-inf"))
        return (seen.softmax(-1) @ v).flatten(1)

    return Layer(forward, qkv=nn.Linear(4, 12), causal=torch.tril(torch.ones(d // 4, d // 4)))


class Image(nn.Module):
    """Convolutions over the features as an image, with a norm and a memory format."""

    def __init__(self, norm: nn.Module, *, last: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
        self.norm = norm
        self.format = torch.channels_last if last else torch.contiguous_format
        self.to(memory_format=self.format)

    def forward(self, x: Tensor) -> Tensor:
        image = x.view(len(x), 1, 8, -1).contiguous(memory_format=self.format)
        return self.second(self.norm(self.first(image)).relu()).mean(1).flatten(1)


@kind
def batch_norm(d: int) -> nn.Module:
    return Image(nn.BatchNorm2d(16))


@kind
def batch_norm_of_features(d: int) -> nn.Module:
    """It needs two samples at least."""
    return after(nn.BatchNorm1d(d), d)


@kind
def norm_without_statistics(d: int) -> nn.Module:
    return Image(nn.BatchNorm2d(16, track_running_stats=False))


@kind
def instance_norm(d: int) -> nn.Module:
    return Image(nn.InstanceNorm2d(16, affine=True, track_running_stats=True))


@kind
def group_norm(d: int) -> nn.Module:
    return Image(nn.GroupNorm(4, 16))


@kind
def channels_last(d: int) -> nn.Module:
    return Image(nn.Identity(), last=True)


@kind
def buffer(d: int) -> nn.Module:
    """A buffer that follows the inputs of the rank, and that is read."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(0.5 * x.abs().mean())
        return self.linear(x).relu() * (1 + self.mean)

    return Layer(forward, linear=linear(d), mean=torch.zeros(()))


@kind
def assigned_buffer(d: int) -> nn.Module:
    """A buffer that is assigned anew in every pass."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.middle = torch.lerp(self.middle, x.detach().median(), 0.1)
        return self.linear(x).relu() * (1 + self.middle)

    return Layer(forward, linear=linear(d), middle=torch.zeros(()))


@kind
def codebook(d: int) -> nn.Module:
    """A vector quantiser whose codes are moving means (VQ-VAE)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        nearest = (hidden[:, None] - self.codes).square().sum(-1).argmin(1)
        with torch.no_grad():
            self.codes[nearest] = 0.9 * self.codes[nearest] + 0.1 * hidden
        return hidden + (self.codes[nearest] - hidden).detach()

    return Layer(forward, linear=linear(d), codes=torch.randn(4, d))


# Parameters.


@kind
def frozen_first(d: int) -> nn.Module:
    return frozen(linear(d))


@kind
def frozen_within(d: int) -> nn.Module:
    return nn.Sequential(linear(d), nn.ReLU(), frozen(linear(d)), nn.ReLU())


@kind
def unused(d: int) -> nn.Module:
    """A layer that no output depends on."""
    return Layer(lambda self, x: self.linear(x).relu(), linear=linear(d), spare=linear(d))


@kind
def tied(d: int) -> nn.Module:
    first, second = linear(d), linear(d)
    second.weight = first.weight
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())


@kind
def weight_norm(d: int) -> nn.Module:
    return after(parametrizations.weight_norm(linear(d)), d)


@kind
def spectral_norm(d: int) -> nn.Module:
    return after(parametrizations.spectral_norm(linear(d)), d)


@kind
def orthogonal(d: int) -> nn.Module:
    return after(parametrizations.orthogonal(linear(d)), d)


@kind
def low_rank(d: int) -> nn.Module:
    """A weight that is parametrized as a product."""
    product = Layer(lambda self, w: w @ self.right, right=nn.Parameter(torch.randn(d, d) / d))
    layer = linear(d)
    parametrize.register_parametrization(layer, "weight", product)
    return nn.Sequential(layer, nn.ReLU())


@kind
def scalars(d: int) -> nn.Module:
    return Layer(lambda self, x: x * self.a + self.b.mean(), a=nn.Parameter(torch.ones(())),
                 b=nn.Parameter(torch.ones(2)))  # fmt: skip


@kind
def parameter_list(d: int) -> nn.Module:
    weights = nn.ParameterList(nn.Parameter(torch.randn(d, d) / d**0.5) for _ in range(2))
    return Layer(lambda self, x: (x @ self.weights[0]).relu() @ self.weights[1], weights=weights)


@kind
def lazy(d: int) -> nn.Module:
    """Its shapes are known after the first forward pass."""
    return nn.Sequential(nn.LazyLinear(d), nn.ReLU())


@kind
def momentum_teacher(d: int) -> nn.Module:
    """Frozen parameters that follow the trained ones in every forward pass (BYOL)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        return self.student(x).relu() + self.teacher(x).detach()

    return Layer(forward, student=linear(d), teacher=frozen(linear(d)))


# Dtypes.


@kind
def complex_weights(d: int) -> nn.Module:
    weights = nn.Parameter(0.1 * torch.randn(d // 2 + 1, dtype=torch.cfloat) + 1)
    return Layer(
        lambda self, x: torch.fft.irfft(torch.fft.rfft(x.float()) * self.w, n=d).to(x.dtype),
        w=weights,
    )


@kind
def complex_view(d: int) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weights = torch.view_as_complex(self.w.float())
        return torch.fft.irfft(torch.fft.rfft(x.float()) * weights, n=d).to(x.dtype)

    return Layer(forward, w=nn.Parameter(0.1 * torch.randn(d // 2 + 1, 2) + 1))


@kind
def double_layer(d: int) -> nn.Module:
    """A layer in float64, whatever the dtype of the model."""

    class Double(nn.Linear):
        def _apply(self, fn: Any, recurse: bool = True) -> Any:
            super()._apply(fn, recurse)
            return super()._apply(lambda tensor: tensor.double(), recurse)

    layer = Double(d, d, dtype=torch.float64)
    return Layer(lambda self, x: self.layer(x.double()).relu().to(x.dtype), layer=layer)


@kind
def double_inside(d: int) -> nn.Module:
    return Layer(
        lambda self, x: functional.linear(x.double(), self.layer.weight.double()).to(x.dtype),
        layer=nn.Linear(d, d, bias=False),
    )


@kind
def half_table(d: int) -> nn.Module:
    """An embedding in bfloat16 below layers of another dtype."""
    table = nn.Embedding(100, d, dtype=torch.bfloat16)

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = self.table(((x[:, 0] + 1) * 49).long())
        return self.linear(x).relu() + rows.to(x.dtype)

    return Layer(forward, table=table, linear=linear(d))


# Random numbers.


@kind
def dropout(d: int) -> nn.Module:
    return after(nn.Dropout(0.1), d)


@kind
def stochastic_depth(d: int) -> nn.Module:
    return Layer(lambda self, x: x + self.a(x).relu() * (torch.rand(()) < 0.8), a=linear(d))


@kind
def random_relu(d: int) -> nn.Module:
    return nn.Sequential(linear(d), nn.RReLU())


@kind
def gumbel(d: int) -> nn.Module:
    return after(Layer(lambda self, x: functional.gumbel_softmax(x, tau=1.0)), d)


@kind
def variational(d: int) -> nn.Module:
    """Noise that is scaled by a layer (a VAE's bottleneck)."""
    return Layer(lambda self, x: self.mean(x) + torch.randn_like(x) * self.spread(x).sigmoid(),
                 mean=linear(d), spread=linear(d))  # fmt: skip


@kind
def encoder_layer(d: int) -> nn.Module:
    """The transformer layer of torch, with its usual dropout."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return Layer(lambda self, x: self.layer(x.view(len(x), -1, 8)).flatten(1), layer=layer)


@kind
def python_random(d: int) -> nn.Module:
    return Layer(lambda self, x: self.a(x).relu() * (1 + random.random()), a=linear(d))


@kind
def numpy_random(d: int) -> nn.Module:
    return Layer(lambda self, x: self.a(x).relu() * (1 + float(np.random.rand())), a=linear(d))


@kind
def own_generator(d: int) -> nn.Module:
    """Noise of a generator that the model keeps: no seed reaches it."""
    generator = torch.Generator().manual_seed(0)
    noise = lambda x: torch.rand(x.shape, generator=generator).to(x)  # noqa: E731
    return Layer(lambda self, x: self.a(x).relu() * (1 + noise(x)), a=linear(d))


@kind
def counter(d: int) -> nn.Module:
    """An attribute that counts the forward passes, and that the output depends on."""

    def forward(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        return self.a(x).relu() / (1 + 0.1 * self.calls)

    return Layer(forward, a=linear(d), calls=0)


@kind
def checkpointed_dropout(d: int) -> nn.Module:
    layers = nn.Sequential(linear(d), nn.ReLU(), nn.Dropout(0.2))
    return Layer(lambda self, x: checkpoint(self.a, x, use_reentrant=False), a=layers)


# Control flow, outputs, and how a model is computed.


@kind
def experts_by_nonzero(d: int) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows = (chosen == i).nonzero()[:, 0]
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out

    return Layer(forward, gate=nn.Linear(d, 4), experts=nn.ModuleList(linear(d) for _ in range(4)))


@kind
def early_exit(d: int) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.a(x).relu()
        hard = (hidden.mean(-1) > hidden.mean(-1).median())[:, None]
        return torch.where(hard, hidden + self.b(hidden).relu(), hidden)

    return Layer(forward, a=linear(d), b=linear(d))


@kind
def branch_on_a_value(d: int) -> nn.Module:
    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.a(x)
        return hidden.relu() if float(hidden.mean()) > 0 else hidden.tanh()

    return Layer(forward, a=linear(d))


@kind
def sparse_gradients(d: int) -> nn.Module:
    table = nn.EmbeddingBag(1000, d, mode="sum", sparse=True)
    return Layer(lambda self, x: self.table(((x.float() + 1) * 499).long()), table=table)


@kind
def embedding_bag(d: int) -> nn.Module:
    table = nn.EmbeddingBag(1000, d, mode="sum")
    return Layer(lambda self, x: self.table(((x.float() + 1) * 499).long()), table=table)


@kind
def lstm(d: int) -> nn.Module:
    cells = nn.LSTM(8, d, batch_first=True, num_layers=2)
    return Layer(lambda self, x: self.cells(x.view(len(x), -1, 8))[0][:, -1], cells=cells)


@kind
def gru(d: int) -> nn.Module:
    cells = nn.GRU(8, d, batch_first=True)
    return Layer(lambda self, x: self.cells(x.view(len(x), -1, 8))[0][:, -1], cells=cells)


@kind
def attention(d: int) -> nn.Module:
    heads = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self: Any, x: Tensor) -> Tensor:
        tokens = x.view(len(x), -1, 8)
        return self.heads(tokens, tokens, tokens, need_weights=False)[0].flatten(1)

    return Layer(forward, heads=heads)


class Square(torch.autograd.Function):
    """A user's derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * gradient


@kind
def own_derivative(d: int) -> nn.Module:
    return Layer(lambda self, x: Square.apply(self.a(x)), a=linear(d))


@kind
def equilibrium(d: int) -> nn.Module:
    """A fixed point, whose gradient is solved for in a hook (a deep equilibrium model)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            point = x
            for _ in range(8):
                point = (0.1 * self.a(point) + x).tanh()
        point = (0.1 * self.a(point) + x).tanh()
        if not point.requires_grad:
            return point
        start = point.detach().requires_grad_()
        again = (0.1 * self.a(start) + x.detach()).tanh()

        def solve(gradient: Tensor) -> Tensor:
            total = gradient
            for _ in range(8):
                total = gradient + torch.autograd.grad(again, start, total, retain_graph=True)[0]
            return total

        point.register_hook(solve)
        return point

    return Layer(forward, a=linear(d))


@kind
def checkpointed(d: int) -> nn.Module:
    return Layer(lambda self, x: checkpoint(self.a, x, use_reentrant=False).relu(), a=linear(d))


@kind
def in_place(d: int) -> nn.Module:
    return nn.Sequential(linear(d), nn.LeakyReLU(0.1, inplace=True))


@kind
def learnt_slope(d: int) -> nn.Module:
    return after(nn.PReLU(), d)


@kind
def gradient_hook(d: int) -> nn.Module:
    layer = linear(d)
    layer.weight.register_hook(lambda gradient: gradient * 0.5)
    return nn.Sequential(layer, nn.ReLU())


@kind
def compiled_inside(d: int) -> nn.Module:
    return torch.compile(nn.Sequential(linear(d), nn.GELU(), linear(d), nn.ReLU()))


@kind
def scripted(d: int) -> nn.Module:
    return torch.jit.script(nn.Sequential(linear(d), nn.ReLU()))


@dataclass
class Output:
    """The output of a model, as Hugging Face's are."""

    logits: Tensor
    hidden: Tensor


class Twice(nn.Module):
    """A model with weights of its own that calls its body twice, and reads its head's weights."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(d))
        self.body, self.blocks = linear(d), nn.ModuleList([linear(d)])
        self.head = nn.Linear(d, 16, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks[0](self.body(x + self.token).relu() + self.body(x.roll(1, 1)))
        return hidden @ self.head.weight.t()


OUTPUTS: dict[str, Callable[[Tensor, Tensor], object]] = {
    "dict_output": lambda logits, hidden: {"logits": logits, "hidden": hidden},
    "tuple_output": lambda logits, hidden: (logits, hidden),
    "dataclass_output": lambda logits, hidden: Output(logits, hidden),
}


class Whole(nn.Module):
    """A model that is not a sequence of blocks, and that returns more than one tensor."""

    def __init__(self, d: int, form: str) -> None:
        super().__init__()
        self.body, self.head, self.form = linear(d), nn.Linear(d, 16), form

    def forward(self, x: Tensor) -> object:
        hidden = self.body(x).relu()
        return OUTPUTS[self.form](self.head(hidden), hidden)


def build(size):
    d = size["d"]
    wanted = size.get("unusual.kind", size["kind"])
    if wanted == "twice":
        return Twice(d)
    if wanted in OUTPUTS:
        return Whole(d, wanted)
    return nn.Sequential(KINDS[wanted](d), linear(d), linear(d), nn.Linear(d, 16))


def batch(ids, size):
    return uniform(ids, size["d"]), labels(ids, size["classes"])


def loss(output, targets):
    if isinstance(output, dict):
        output = output["logits"]
    elif isinstance(output, tuple):
        logits, hidden = output
        return functional.cross_entropy(logits, targets) + 1e-3 * hidden.square().mean()
    elif isinstance(output, Output):
        output = output.logits
    return functional.cross_entropy(output, targets)


def flops(size):
    return 1.0
