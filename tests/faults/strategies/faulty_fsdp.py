"""FSDP with one fault on one rank."""

from planting import plant

from harness import fsdp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="same_seed", dims=("fsdp", "dp"))
KNOBS = dict(kind="none", rank=1, struck="")
expect, build = plant(fsdp)
