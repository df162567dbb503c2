"""Starting ranks: engines, the fleet of agents, and who is to blame when a launch breaks."""
