"""Time that faults took: recoveries, and the goodput of trainings that went through many."""
