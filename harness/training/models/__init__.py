"""What is trained. One file adds one model: a head of literals, build, batch, loss, flops."""
