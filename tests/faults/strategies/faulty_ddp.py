"""DDP with one fault on one rank."""

from planting import plant

from harness import ddp

SUPPORTS = dict(worlds="any", oracle="shard_ordered", initial="broadcast", replicas=True)
KNOBS = dict(kind="none", rank=1, struck="")
expect, build = plant(ddp)
