"""How gradients are encoded. One file adds one compressor: a head of literals, payload, build."""
