"""Messages between the main program and its agents, and the files that ranks leave behind.

Both sides of a connection use these modules, so they are the interface between them.
"""
