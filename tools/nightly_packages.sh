#!/usr/bin/env bash
# What the nightly tests need beyond Python, on Debian. Without it those tests skip and say which is missing.
set -euo pipefail
apt-get update
exec apt-get install -y --no-install-recommends \
    buildah chromium curl debootstrap nix-bin podman runc shellcheck strace systemd
