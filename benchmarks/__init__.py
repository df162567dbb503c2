"""asv benchmarks of the measured records. They only read records, and do not import torch."""
