"""asv's view of the measured records. Torch-free: nothing is measured here, only read."""
