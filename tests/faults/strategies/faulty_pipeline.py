"""Pipeline, with one fault on one rank."""

from planting import plant

from harness import pipeline

SUPPORTS = dict(
    worlds="any", oracle="micro_batched", parts="microbatches", initial="same_seed", whole=True
)
KNOBS = dict(kind="none", rank=1, struck="", microbatches=8)
expect, build = plant(pipeline)
