#!/bin/sh
# Slurm: Prolog=/path/prolog.sh. Drain a node that is not fit before a job starts on it.
# Exit status 0: the node is fit, or the check did not finish in time, and the job should not wait.
# Any other exit status drains the node.
. "$(dirname "$0")/site.sh"
"$SCALEPROOF" check nodes --gpus "${SLURM_GPUS_ON_NODE:-auto}" --within 60s --results "$RESULTS" \
    --references "$REFERENCES" >"$RESULTS/prolog-$(hostname).txt" 2>&1
status=$?
[ "$status" -eq 10 ] && exit 0
exit "$status"
