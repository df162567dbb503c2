#!/usr/bin/env bash
# Run a command of this checkout with the Slurm of another Debian: bookworm has 22.05, trixie 24.11, sid a newer one.
#   sudo bash scripts/in-debian.sh trixie python -m pytest tests/launch/clusters -k slurm -m "full or not full"
# The first call builds that Debian from its packages (debootstrap, 300 MB, 2 minutes) in the folder CHROOTS.
# The command runs with its /usr. Python, the checkout and /tmp remain those of this system.
set -euo pipefail
[ $# -ge 2 ] || { echo "usage: $0 RELEASE COMMAND..." >&2; exit 4; }
release=$1; shift
root=${CHROOTS:-/var/tmp/scaleproof-chroots}/$release
if [ "$(id -u)" -ne 0 ]; then echo "a chroot needs root: sudo bash $0 $release ..." >&2; exit 4; fi
if ! command -v debootstrap >/dev/null; then echo "apt-get install debootstrap" >&2; exit 4; fi
if [ ! -e "$root/.built" ]; then
  debootstrap --variant=minbase \
    --include=slurmctld,slurmd,slurm-client,libffi8,libsqlite3-0,libreadline8t64,libuuid1,libexpat1,libgomp1,iproute2 \
    "$release" "$root" http://deb.debian.org/debian >&2
  touch "$root/.built"
fi
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$here/.venv/bin/python}
export IN_DEBIAN_ROOT=$root IN_DEBIAN_HERE=$here IN_DEBIAN_FROM=$PWD
# The folders of Python, of its environment and of this checkout have the same paths inside.
IN_DEBIAN_SEEN=$("$python" -c 'import sys; print(sys.base_prefix, sys.prefix)')
export IN_DEBIAN_SEEN
# The mounts are in a separate namespace, so they end with the command.
exec unshare --mount --propagation private -- bash -euo pipefail -c '
  for place in /proc /sys /dev /tmp $IN_DEBIAN_SEEN "$IN_DEBIAN_HERE"; do
    case "$place" in /usr|/usr/*) echo "a Python outside of /usr is needed, not $place" >&2; exit 4;; esac
    mkdir -p "$IN_DEBIAN_ROOT$place"
    mount --rbind "$place" "$IN_DEBIAN_ROOT$place"
  done
  cp /etc/hosts /etc/resolv.conf "$IN_DEBIAN_ROOT/etc/"
  hostname > "$IN_DEBIAN_ROOT/etc/hostname"
  exec chroot "$IN_DEBIAN_ROOT" env -C "$IN_DEBIAN_FROM" PATH="$IN_DEBIAN_HERE/.venv/bin:/usr/sbin:/usr/bin:/sbin:/bin" "$@"
' in-debian "$@"
