# A launcher that starts no rank.
echo starting $1 ranks
echo port 29400 is taken >&2
exit 3
