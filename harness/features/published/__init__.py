"""Compare measured results with published ones of other systems."""
