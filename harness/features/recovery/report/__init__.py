"""Reports on the time that faults take: recovery trials, and the goodput of trainings with many
faults.
"""
