#!/usr/bin/env bash
# Debian packages that some tests use; without them those tests skip and say why.
#   chromium   opens the HTML report as a person would
#   slurm-wlm  a cluster of several daemons on this machine
#   iproute2   emulated networks
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
