"""A recommender: tables of rare rows, dense features, and what they have in common (DLRM)."""

import itertools
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.data import hashed, uniform

#: Naumov et al. (2019); "criteo" is MLPerf's: Criteo's terabyte, with at most 40 million rows.
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


#: Numbers of rows are told in two digits, each of which a float holds.
DIGIT = 8192


#: A module of embedding tables, ``table0`` and so on, that a strategy may share out.
TABLES = "looked.tables"


def _layers(first: int, widths: Sequence[int]) -> list[nn.Module]:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for before, width in zip([first, *widths], widths, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    return layers


class Tables(nn.Module):
    """Embedding tables of unequal lengths: rows (B, tables) -> (B, tables, d)."""

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
        """Looks rows up in these tables alone, asked for in this order."""
        parts = []
        for column, i in enumerate(tables):
            asked = rows[:, column].clamp(max=self.rows[i] - 1)  # 16 bits may have rounded it up
            parts.append(functional.embedding(asked, getattr(self, f"table{i}")))
        return torch.stack(parts, 1)


class Looked(nn.Module):
    """Dense features and a row of each table, (B, dense + tables) -> (B, 1 + tables, d).

    What it is given is float, so a row's number comes in two digits.
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
    """Dot products of all pairs beside the dense vector, (B, 1 + tables, d) -> (B, 1)."""

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__()
        vectors = 1 + len(size["rows"])
        # In Python: tensors without data, by which memory is counted, have no values to list.
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
    """Features, numbers of rows in two digits, (B, dense + 2 tables), and clicks (B,).

    A click follows from the first rows, but for one in ten.
    """
    tables = len(size["rows"])
    num_rows = torch.tensor(size["rows"], device=ids.device)
    drawn = hashed(ids, tables + 1)
    # The square of a uniform number: rows at the front are asked for more often.
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
    """6 per multiply-add; 4 in the first layer, whose input needs no gradient; rows are free."""
    bottom = [size["dense"], *size["bottom"]]
    vectors = 1 + len(size["rows"])
    top = [size["d"] + vectors * (vectors - 1) // 2, *size["top"]]
    products = sum(a * b for widths in (bottom, top) for a, b in itertools.pairwise(widths))
    total = 6.0 * (products + vectors * vectors * size["d"]) - 2.0 * bottom[0] * bottom[1]
    return float(total)
