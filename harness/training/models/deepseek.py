"""DeepSeekMoE: many small experts, some of which get every token, and a dense first layer."""

from collections import OrderedDict
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional

from harness.base.documents import Json
from harness.training.models import decoder, moe
from harness.training.models.decoder import DecoderBlock
from harness.training.models.moe import ExpertBlock

#: Sizes from Dai et al. (2024), table 1, and the published configuration of the 16B model.
SIZES = {
    "nano": dict(
        d=64, layers=3, heads=4, kv=4, ff=128, fine=32, experts=16, shared=2, vocab=256, seq=32,
        batch=8, gated=True,
    ),
    "16b": dict(
        d=2048, layers=28, heads=16, kv=16, ff=10944, fine=1408, experts=64, shared=2,
        vocab=102400, seq=4096, batch=1, gated=True,
    ),
}  # fmt: skip
KNOBS = dict(top=6, capacity=1.25, balance=0.01)
#: Modules whose parameters have one entry per expert along dimension 0, which ranks may divide.
EXPERTS = "block*.experts"

batch, tokens, floor = decoder.batch, decoder.tokens, decoder.floor
loss = moe.loss


class SharingBlock(ExpertBlock):
    """A block in which each token uses its ``top`` experts and the shared experts."""

    def __init__(self, size: Mapping[str, Json]) -> None:
        super().__init__({**size, "ff": size["fine"]})
        wide = size["shared"] * size["fine"]
        self.shared_up = nn.Linear(size["d"], 2 * wide, bias=False)
        self.shared_down = nn.Linear(wide, size["d"], bias=False)

    def routed(self, x: Tensor) -> Tensor:
        gate, hidden = self.shared_up(x).chunk(2, -1)
        shared: Tensor = self.shared_down(functional.silu(gate) * hidden)
        return super().routed(x) + shared


def build(size: Mapping[str, Json]) -> nn.Sequential:
    """Build embedding, one dense block, blocks of experts, norm and an untied head."""
    plain = dict(decoder.build({**size, "layers": 0}).named_children())
    blocks: list[tuple[str, nn.Module]] = [("block0", DecoderBlock(size))]
    blocks += [(f"block{i}", SharingBlock(size)) for i in range(1, size["layers"])]
    named = [("embed", plain["embed"]), *blocks, ("head", plain["head"])]
    return nn.Sequential(OrderedDict(named))


def flops(size: Mapping[str, Json]) -> float:
    """Return FLOPs as in the dense decoder, but count only the experts that a token uses."""
    d = size["d"]
    s = int(size["seq"])
    layers = size["layers"]
    attention = d * (size["heads"] + 2 * size["kv"]) * (d // size["heads"]) + d * d
    dense = 3 * d * size["ff"]
    routed = d * size["experts"] + 3 * d * size["fine"] * (size["top"] + size["shared"])
    weights = layers * attention + dense + (layers - 1) * routed + d * size["vocab"]
    return float(6.0 * weights * s + 12.0 * layers * s * s * d)
