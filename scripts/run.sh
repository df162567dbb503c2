#!/usr/bin/env bash
# Set up the environment .venv in this repository, and run pytest in it:
#   bash scripts/run.sh suites [options]   measure and judge scaling on this machine
#   bash scripts/run.sh tests  [options]   the project's own tests
# PYTHON chooses the interpreter (>= 3.11), VENV the environment.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-}
case $what in
  suites) extras= parallel= ;;
  # Three processes even on two cores, because tests often wait for their ranks.
  tests) extras='[test]' parallel='-n 3 --dist loadfile --no-loadscope-reorder' ;;
  *) sed -n '2,5s/^# //p' "$0" >&2; exit 4 ;;
esac
shift
venv=${VENV:-.venv}
new=
[ -x "$venv/bin/python" ] || { new=yes && "${PYTHON:-python3}" -m venv "$venv"; }
"$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "ERROR: $venv is Python < 3.11. try: rm -r $venv && PYTHON=python3.12 bash $0 $what" >&2
  exit 4
}
install=("$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-compile)
[ "$what" = suites ] ||
  "${install[@]}" --require-hashes --no-deps -r scripts/requirements-test.txt
"${install[@]}" -c constraints.txt -e ".$extras"
# Compile the packages on all cores, which pip does not do. Otherwise the first ranks would compile them,
# and every process again if PYTHONDONTWRITEBYTECODE is set.
[ -z "$new" ] || "$venv/bin/python" -m compileall -q -j 0 -x '/(tests?|testing)/' "$venv/lib" harness || true
exec "$venv/bin/python" -m pytest "$what/" $parallel "$@"
