"""Benchmarks for asv that read measured records. They neither measure anything nor import torch."""
