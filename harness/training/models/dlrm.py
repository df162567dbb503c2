"""A recommender (DLRM): embedding tables, dense features, and the dot products of their vectors."""

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import hashed, uniform

#: The model is from Naumov et al. (2019). "criteo" is MLPerf's size for the Criteo terabyte data
#: set, with tables of at most 40 million rows.
SIZES = {
    "nano": dict(d=16, dense=13, bottom=[32, 16], top=[64, 32, 1], batch=32,
        rows=[97, 64, 31, 8, 53, 5, 120, 16]),
    "small": dict(d=32, dense=13, bottom=[64, 32], top=[128, 64, 1], batch=128,
        rows=[20000, 20000, 20000, 20000, 20000, 20000, 20000, 20000]),
    "criteo": dict(
        d=128, dense=13, bottom=[512, 256, 128], top=[1024, 1024, 512, 256, 1],
        rows=[
            39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10,
            2208, 11938, 155, 4, 976, 14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
        ],
        batch=2048,
    ),
}  # fmt: skip


#: Base of the two digits that encode a row index. A float can represent each digit exactly.
DIGIT = 8192


#: The module of the embedding tables ``table0``, ``table1``, .., which ranks may divide.
TABLES = "looked.tables"


def _layers(first: int, widths: Sequence[int]) -> list[nn.Module]:
    """Return linear layers, each followed by a ReLU."""
    layers: list[nn.Module] = []
    for before, width in zip([first, *widths], widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return layers


class Tables(nn.Module):
    """Embedding tables of unequal lengths, which map row indices (B, tables) to (B, tables, d)."""

    embeds = True

    def __init__(self, rows: Sequence[int], d: int) -> None:
        super().__init__()
        self.rows = tuple(rows)
        self.d = d
        for i, count in enumerate(rows):
            weight = nn.Parameter(torch.empty(count, d))
            nn.init.uniform_(weight, -(count**-0.5), count**-0.5)
            setattr(self, f"table{i}", weight)

    def forward(self, rows: Tensor) -> Tensor:
        return self.looked_up(rows, range(len(self.rows)))

    def looked_up(self, rows: Tensor, tables: Sequence[int]) -> Tensor:
        """Look up each column of ``rows`` in one table; ``tables`` lists the columns' tables."""
        parts = []
        for column, i in enumerate(tables):
            asked = rows[:, column].clamp(max=self.rows[i] - 1)  # bf16 may round up
            parts.append(functional.embedding(asked, getattr(self, f"table{i}")))
        return torch.stack(parts, 1)


class Looked(nn.Module):
    """Embed dense features and one row of each table as vectors (B, 1 + tables, d).

    The input (B, dense + 2 tables) is float, so each row index consists of two digits.
    """

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        self.dense = size["dense"]
        self.bottom = nn.Sequential(*_layers(size["dense"], size["bottom"]))
        self.tables = Tables(size["rows"], size["d"])

    def forward(self, x: Tensor) -> Tensor:
        count = len(self.tables.rows)
        features, high, low = x.split((self.dense, count, count), 1)
        rows = high.long() * DIGIT + low.long()
        return torch.cat((self.bottom(features)[:, None], self.tables(rows)), 1)


class Interacted(nn.Module):
    """Map vectors (B, 1 + tables, d) to a logit (B, 1).

    The input of its layers is the dense vector and the dot products of all pairs of vectors.
    """

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        vectors = 1 + len(size["rows"])
        # A Python list can index tensors without data, on which memory is counted.
        self.pairs = [row * vectors + column for row in range(vectors) for column in range(row)]
        inputs = size["d"] + len(self.pairs)
        self.top = nn.Sequential(*_layers(inputs, size["top"])[:-1])

    def forward(self, x: Tensor) -> Tensor:
        products = (x @ x.mT).flatten(1)[:, self.pairs]
        click: Tensor = self.top(torch.cat((x[:, 0], products), 1))
        return click


def build(size: Mapping[str, Json]) -> nn.Sequential:
    return nn.Sequential(OrderedDict(looked=Looked(size), head=Interacted(size)))


def batch(ids: Tensor, size: Mapping[str, Json]) -> tuple[Tensor, Tensor]:
    """Return features with row indices in two digits (B, dense + 2 tables), and clicks (B,).

    The row indices of the first and the last table determine a click. One click in ten is inverted.
    """
    tables = len(size["rows"])
    num_rows = torch.tensor(size["rows"], device=ids.device)
    drawn = hashed(ids, tables + 1)
    # Squaring a uniform number makes the first rows more frequent.
    share = (drawn[:, :tables] % (1 << 24)).double() / (1 << 24)
    rows = (share * share * num_rows).long().clamp(max=num_rows - 1)
    noisy = drawn[:, tables] % 10 == 0
    clicked = (rows[:, 0] + rows[:, -1]) % 2 == 0
    features = uniform(ids, size["dense"])
    digits = torch.cat((rows // DIGIT, rows % DIGIT), 1).float()
    return torch.cat((features, digits), 1), (clicked ^ noisy).float()


def loss(output: Tensor, targets: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output.float()[:, 0], targets.float())


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs: 6 per multiply-add, or 4 in the first layer, whose input needs no gradient.

    Looking up rows needs no FLOPs.
    """
    bottom = [size["dense"], *size["bottom"]]
    vectors = 1 + len(size["rows"])
    top = [size["d"] + vectors * (vectors - 1) // 2, *size["top"]]
    products = sum(a * b for widths in (bottom, top) for a, b in itertools.pairwise(widths))
    total = 6.0 * (products + vectors * vectors * size["d"]) - 2.0 * bottom[0] * bottom[1]
    return float(total)
