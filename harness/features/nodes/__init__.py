"""Finds the slow node or link of a cluster: pairs of nodes are measured in rounds and compared."""
