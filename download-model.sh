#!/usr/bin/env bash
# Fetch and verify a pinned artifact:  ./download-model.sh MODEL [options]     ./download-model.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
    cat <<'TEXT'
usage: ./download-model.sh MODEL [options]

  MODEL      qwen38-27b, qwen36-27b or qwen36-35b-a3b
  options    those of `download-model`, for example --list, --verify, --repair, --offline

The file goes to NINFER_MODEL_DIR, else to models beside this file. An interrupted download continues; a file that
verifies is left as it is. NINFER_SKIP_SHA256=1 checks the size alone.
TEXT
}

case "${1:-}" in
-h | --help) usage; exit 0 ;;
'') usage >&2; exit 2 ;;
esac
. "$root/tools/environment.sh"
check_system "nix run .#download-${1%-a3b}"

# shellcheck disable=SC2119
venv=$(made_environment)
choose_folders "$@"
exec "$venv/bin/python" -m downloader "$@"
