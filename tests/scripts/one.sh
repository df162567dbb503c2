# One rank, whatever it is asked for: a group of its own.
torchrun --standalone --nproc-per-node=1 loop.py
