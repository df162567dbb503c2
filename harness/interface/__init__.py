"""The interfaces for people: commands, reports, the pytest plugin, notebooks, data frames.

cli/        the command scaleproof; commands/ has one file for each command
report/     screens, tables and the HTML page of a run
plugin/     pytest suites/
offered     the options that all measuring commands share
frames      pandas data frames; export writes them to files
notebook    a run in a notebook
schema/     JSON Schemas of what commands print with --json
start/      templates of a new suite
"""
