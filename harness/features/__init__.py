"""Optional parts. Each folder imports the core, never another feature, and can be deleted.

history      results over time, nightly runs, bisection
nodes        slow nodes and links, fitness of nodes
recovery     recovery from faults, goodput
foresight    predictions of larger systems, audits of published tables
machines     comparison of machines
acceptance   contracts and acceptance reports
published    published figures of comparable systems
sharing      pull requests, and other tools that results are sent to
site         a static site of all runs
"""
