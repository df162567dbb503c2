#!/bin/sh
# Slurm: Epilog=/path/epilog.sh. What a job left behind is not the next one's: check prints what
# still runs, or holds memory or a GPU; 1 and 10 drain the node.
. "$(dirname "$0")/site.sh"
"$SCALEPROOF" check >"$RESULTS/epilog-$(hostname).txt" 2>&1
