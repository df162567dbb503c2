"""Where batches come from: one file each. Its head is INPUT and KNOBS, its function ``feed``."""
