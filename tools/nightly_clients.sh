#!/usr/bin/env bash
# Installs the command-line clients of tests/clients into the folder $NINFER_CLIENTS (1.2 GB), for ./test.sh nightly.
# Any Node from 20 on does for installing; the Node that runs them is one of the packages.
set -euo pipefail
folder=${NINFER_CLIENTS:?name a folder outside the checkout in NINFER_CLIENTS}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$folder"
cp "$here/tests/clients/package.json" "$folder/package.json"
cd "$folder"
npm install --no-audit --no-fund --no-package-lock
export PATH="$folder/node_modules/.bin:$PATH"
for client in node claude codex qwen opencode; do
    printf '%-9s %s\n' "$client" "$("$client" --version)"
done
