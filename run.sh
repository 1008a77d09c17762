#!/usr/bin/env bash
# Start the appliance:  ./run.sh [MODEL [PROFILE]] [options]     ./run.sh --setup-only     ./run.sh --help
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

usage() {
    cat <<'TEXT'
usage: ./run.sh [MODEL [PROFILE]] [options]

  MODEL      nano (embedded, the default), qwen38-27b, qwen36-27b, qwen36-35b-a3b, or a path of a .ninfer file
  PROFILE    tuned (the default), int8 or c8
  options    those of `ninfer-appliance up`, for example --port 8081

  --setup-only   make the environment and stop
  --help         this text
TEXT
}

find_python() {
    local candidate
    for candidate in "${NINFER_PYTHON:-}" python3.13 python3.12 python3.11 python3.14 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    if command -v apt-get >/dev/null; then hint='apt install python3 python3-venv'
    elif command -v dnf >/dev/null; then hint='dnf install python3'
    else hint='install Python 3.11 or newer'; fi
    echo "setup: no Python 3.11 to 3.14 found: $hint" >&2
    exit 2
}

check_system() {
    local id=''
    [ -r /etc/os-release ] && id=$(. /etc/os-release && echo "${ID:-}")
    case "$id" in
    nixos)
        echo 'setup: on NixOS these wheels lack their loader; type: nix run .#serve' >&2
        exit 2 ;;
    bazzite)
        echo 'setup: on Bazzite the container is the short path (etc/quadlet); this folder works for the CPU' >&2 ;;
    esac
}

case "${1:-}" in
-h | --help) usage; exit 0 ;;
esac
check_system

setup=()
model=nano profile=tuned setup_only=
case "${1:-}" in
--setup-only) setup_only=1; shift ;;
-* | '') ;;
*)
    model=$1; shift
    case "${1:-}" in -* | '') ;; *) profile=$1; shift ;; esac ;;
esac
[ "$model" = nano ] || setup+=(--real-model)

# An environment that is up to date says so itself, without a search for another interpreter.
folder=${NINFER_VENV:-$root/.venv}
if ! venv=$("$folder/bin/python" "$root/tools/environment.py" --check "${setup[@]}" 2>/dev/null); then
    python=$(find_python)
    venv=$("$python" "$root/tools/environment.py" "${setup[@]}")
fi
[ -z "$setup_only" ] || exit 0
export NINFER_HOME=${NINFER_HOME:-$root/.ninfer}
exec "$venv/bin/python" -m appliance.cli up --model "$model" --profile "$profile" "$@"
