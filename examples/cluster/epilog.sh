#!/bin/sh
# Slurm: Epilog=/path/epilog.sh. Check the node after each job: `doctor` reports processes that
# still run, or hold memory or a GPU. Exit statuses 1 and 10 drain the node.
. "$(dirname "$0")/site.sh"
"$SCALEPROOF" check >"$RESULTS/epilog-$(hostname).txt" 2>&1
