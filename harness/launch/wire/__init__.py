"""Messages across the border between a program and its agents, and the files that ranks leave
behind.
"""
