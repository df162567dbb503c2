"""Starting ranks: engines, agents, the launches over them, and the cause of a failure.

engine      the protocol of an engine; engines/ has one file for each
deploy      from an engine's name to a fleet; cluster reads cluster files
dialers     start agents, which connect to this program
fleet       all agents as one; agents has their connections, monitoring and replacement
running     one launch over the agents of a fleet
causes      which rank ended a launch, and how certain that is
wire/       messages between this program, agents and ranks
emulation/  nodes emulated on one machine
"""
