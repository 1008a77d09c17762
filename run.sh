#!/usr/bin/env bash
# Start the appliance:  ./run.sh [MODEL [PROFILE]] [options]     ./run.sh --setup-only     ./run.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
    cat <<'TEXT'
usage: ./run.sh [MODEL [PROFILE]] [options]

  MODEL      nano (embedded, the default), qwen38-27b, qwen36-27b, qwen36-35b-a3b, or a path of a .ninfer file
  PROFILE    tuned (the default), int8 or c8; NINFER_SPEC=mtp, none or dflash2 selects the row of tuned
  options    those of `ninfer-appliance up`, for example --port 8081

  --setup-only   make the environment and stop
  --help         this text

Artifacts are in NINFER_MODEL_DIR, else in ../models or models beside this file; NINFER_MODEL names one by its path.
TEXT
}

case "${1:-}" in
-h | --help) usage; exit 0 ;;
esac
. "$root/tools/environment.sh"
check_system 'nix run .#serve'

named=() setup=() setup_only=
model=${NINFER_MODEL:-nano}
case "${1:-}" in
--setup-only) setup_only=1; shift ;;
-* | '') ;;
*)
    model=$1 named=(--model "$1"); shift
    case "${1:-}" in -* | '') ;; *) named+=(--profile "$1"); shift ;; esac ;;
esac
[ "$model" = nano ] || [ -n "$setup_only" ] || setup=(--real-model)

venv=$(made_environment "${setup[@]}")
[ -z "$setup_only" ] || exit 0
choose_folders "$@"
exec "$venv/bin/python" -m appliance.cli up "${named[@]}" "$@"
