"""Pipeline, with one fault on one rank."""

from planting import plant

from harness.training.strategies import pipeline

SUPPORTS = dict(worlds="any", oracle="micro_batched", initial="same_seed", whole=True)
KNOBS = dict(kind="none", rank=1, struck="")
expect, build = plant(pipeline, "faulty_pipeline")
