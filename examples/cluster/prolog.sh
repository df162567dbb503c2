#!/bin/sh
# Slurm: Prolog=/path/prolog.sh. A node that is not fit is drained before a job starts on it.
# Exit status 0: fit, or not known in time (a job should not wait for us); anything else drains.
. "$(dirname "$0")/site.sh"
"$SCALEPROOF" check nodes --gpus "${SLURM_GPUS_ON_NODE:-auto}" --within 60s --results "$RESULTS" \
    --references "$REFERENCES" >"$RESULTS/prolog-$(hostname).txt" 2>&1
status=$?
[ "$status" -eq 10 ] && exit 0
exit "$status"
