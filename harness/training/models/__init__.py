"""Models to train.

One file is one model: a head of literals and the functions build, batch, loss and flops.
"""
