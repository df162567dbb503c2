#!/usr/bin/env bash
# Install Debian packages that some tests use. Without them these tests are skipped with a reason.
#   chromium   opens the HTML report
#   slurm-wlm  runs a cluster of several daemons on this machine
#   iproute2   emulates networks
set -euo pipefail
missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v git >/dev/null || missing+=(git)
command -v slurmctld >/dev/null || missing+=(slurm-wlm)
command -v tc >/dev/null || missing+=(iproute2)
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
