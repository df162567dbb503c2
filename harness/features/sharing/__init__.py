"""Publish the effect of a change, and the results of runs, in other tools and code hosts."""
