# shellcheck shell=bash
# What run.sh and download-model.sh share: which Python, which environment, which folders. Sourced; `root` is set.

find_python() {
    local candidate hint
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

# check_system NIX_COMMAND
check_system() {
    local id=''
    # shellcheck disable=SC1091
    [ -r /etc/os-release ] && id=$(. /etc/os-release && echo "${ID:-}")
    case "$id" in
    nixos)
        echo "setup: on NixOS these wheels lack their loader; type: $1" >&2
        exit 2 ;;
    bazzite)
        echo 'setup: on Bazzite the container is the short path (etc/quadlet); this folder works for the CPU' >&2 ;;
    esac
}

# made_environment [--real-model]: prints the folder of the environment, made when it is missing or old.
made_environment() {
    # An environment that is up to date says so itself, without a search for another interpreter.
    local folder=${NINFER_VENV:-$root/.venv} python
    "$folder/bin/python" "$root/tools/environment.py" --check "$@" 2>/dev/null && return
    python=$(find_python) || exit
    "$python" "$root/tools/environment.py" "$@"
}

# choose_folders [arguments]: exports the home and the folder of artifacts, unless they are named already. Without a home
# of their own, artifacts are looked for above and beside the checkout and fetched to `models` beside it.
choose_folders() {
    local home=${NINFER_HOME:-} folder
    case " $* " in *' --home'*) return ;; esac
    export NINFER_HOME=${home:-$root/.ninfer}
    [ -z "${NINFER_MODEL_DIR:-}" ] || return 0
    NINFER_MODEL_DIR=$(sed -n 's/^ *model-dir *= *"\(.*\)".*/\1/p' "$NINFER_HOME/settings.toml" 2>/dev/null || true)
    if [ -z "$NINFER_MODEL_DIR" ]; then
        NINFER_MODEL_DIR=${home:-$root}/models
        for folder in "$root/../models" "$root/models" "$root/.ninfer/models"; do
            if [ -z "$home" ] && compgen -G "$folder/*.ninfer" >/dev/null; then
                NINFER_MODEL_DIR=$(cd "$folder" && pwd -P)
                break
            fi
        done
    fi
    export NINFER_MODEL_DIR
}
