"""Pipeline with one fault on one rank."""

from planting import plant

from harness import pipeline

SUPPORTS = dict(
    worlds="any", oracle="micro_batched", parts="microbatches", initial="same_seed", dims=("pp",)
)
KNOBS = dict(
    kind="none", rank=1, struck="", microbatches=8, schedule="gpipe", split="flops", sequence=False
)
expect, build = plant(pipeline)
