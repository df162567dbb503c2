#!/usr/bin/env bash
# Write scripts/requirements-test.txt, the packages of the tests with the hashes of their files. It
# needs uv. Run it after a change of constraints.txt or of the extra "test" in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
list=scripts/requirements-test.txt
without=$(mktemp)
trap 'rm "$without"' EXIT
echo "torch ; sys_platform == 'none'" > "$without"
compiled=$(printf '%s\n' filelock fsspec networkx sympy typing-extensions |
  uv pip compile pyproject.toml - --extra test --constraints constraints.txt --override "$without" \
    --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --quiet)
{
  sed -n '/^#/p' "$list"
  sed "/^torch==/,/^[^ ].*==/{/^torch==/d;/^ /d}" <<< "$compiled"
} > "$list.new"
mv "$list.new" "$list"
