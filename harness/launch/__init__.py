"""Start ranks through engines and agents, follow their launches, and find the cause of a failure.

engine      the protocol of an engine; engines/ has one file for each engine
deploy      starts the fleet of an engine
cluster     reads cluster files
dialers     starts agents, which connect to this program
agents      connects to agents, monitors them and replaces lost ones
fleet       launches worlds on all agents of a run
running     follows one launch on the agents of a fleet
causes      finds the rank that ended a launch, and how certain that is
wire/       messages between this program, agents and ranks
emulation/  emulates several nodes on one machine
"""
