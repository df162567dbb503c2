#!/usr/bin/env bash
# Debian packages that some tests use; without them those tests skip and say why.
#   chromium   opens the HTML report as a person would
set -euo pipefail
missing=()
command -v chromium >/dev/null || missing+=(chromium)
command -v git >/dev/null || missing+=(git)
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
$sudo apt-get update -qq
$sudo apt-get install -y -qq --no-install-recommends "${missing[@]}"
