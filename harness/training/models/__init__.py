"""Models to train. One file adds one model: a head of literals, build, batch, loss, flops."""
