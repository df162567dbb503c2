"""Sources of batches, one file each, with a head of INPUT and KNOBS and a function ``feed``."""
