#!/bin/sh
# The broker runs this script on every node: node.sh HEAD RANK NODES GPUS WORDS...
# The first node runs `scaleproof WORDS...`, and every node joins it. SCALEPROOF_TOKEN is a secret
# that the broker gives to all nodes; create it with: head -c 32 /dev/urandom | xxd -p -c 64
set -eu
head=$1; rank=$2; nodes=$3; gpus=$4
shift 4
folder=$(mktemp -d)
(umask 077; printf %s "$SCALEPROOF_TOKEN" >"$folder/token")
if [ "$rank" -ne 0 ]; then
  exec scaleproof jobs join "$head:${PORT:-4000}" --token-file "$folder/token" --order "$rank"
fi
{
  printf '[hosts]\nssh = false\nport = %s\nlisten = "%s"\n' "${PORT:-4000}" "$head"
  printf 'one_machine = %s\ntoken_file = "%s/token"\nnodes = [' "${ONE_MACHINE:-false}" "$folder"
  i=0
  while [ "$i" -lt "$nodes" ]; do printf '"node%s", ' "$i"; i=$((i + 1)); done
  printf ']\n'
} >"$folder/cluster.toml"
scaleproof jobs join "$head:${PORT:-4000}" --token-file "$folder/token" --order 0 &
exec scaleproof "$@" --engine hosts --cluster "$folder/cluster.toml" \
  --nodes "${nodes}x$gpus" "--${DEVICES:-gpus}" "$((nodes * gpus))"
