"""A run: climbs, pilots, blocks, sweeps and trials, into one record."""
