#!/usr/bin/env bash
# Installs the appliance as a system service on a plain Linux box, and takes it away again. Run it as often as you like.
set -euo pipefail
source_folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

usage() {
    cat <<'TEXT'
usage: sudo tools/install_systemd.sh [--uninstall [--purge]] [--dry-run] [--no-start] [--root DIR]

  (nothing)         install or update: program in /opt/ninfer, units, user ninfer, commands in /usr/local/bin; start
  --uninstall       take all of that away; models, keys and settings stay in /var/lib/ninfer and /etc/ninfer
  --purge           with --uninstall: models, cache, keys, settings and the user too
  --dry-run         print what would be done
  --no-start        enable for the next boot, do not start now
  --root DIR        work on the file system below DIR (an image): starts nothing, and leaves making the Python
                    environment to a command that it prints
TEXT
}

fail() {
    echo "install_systemd: $1" >&2
    exit "${2:-2}"
}

action=install purge='' dry='' start=1 root=''
while [ $# -gt 0 ]; do
    case "$1" in
    --uninstall) action=uninstall ;;
    --purge) purge=1 ;;
    --dry-run) dry=1 ;;
    --no-start) start='' ;;
    --root)
        [ -d "${2:-}" ] || fail "--root needs a folder that exists (got '${2:-}')"
        root=$(cd "$2" && pwd -P); shift ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; fail "unknown argument '$1'" ;;
    esac
    shift
done
[ "$root" = / ] && root=''
[ -z "$purge" ] || [ "$action" = uninstall ] || fail '--purge goes with --uninstall'
if [ -z "$dry" ] && [ -z "$root" ]; then
    [ "$(id -u)" = 0 ] || fail "the service belongs to the system; type: sudo $0"
    [ -d /run/systemd/system ] || fail 'systemd does not run here; ./run.sh starts the appliance without it'
fi

program=$root/opt/ninfer
units=$root/etc/systemd/system
settings=$root/etc/ninfer/ninfer.env
commands=(ninfer-appliance ninfer-serve ninfer ninfer-artifact download-model)
parts=(appliance downloader engine kernels etc docs tools pyproject.toml requirements.lock VERSION LICENSE README.md)

run() {
    printf '+'
    printf ' %q' "$@"
    echo
    [ -n "$dry" ] || "$@"
}

live() { [ -z "$root" ]; }

install_program() {
    local part
    run mkdir -p "$program"
    run rm -rf "$program/app.new"
    run mkdir "$program/app.new"
    for part in "${parts[@]}"; do
        [ -e "$source_folder/$part" ] || continue
        run cp -a "$source_folder/$part" "$program/app.new/"
    done
    run chown -R --no-dereference "$(id -u):$(id -g)" "$program/app.new"
    run chmod -R u=rwX,go=rX "$program/app.new"
    run find "$program/app.new" '(' -name __pycache__ -o -name '*.verified' ')' -prune -exec rm -rf '{}' +
    run rm -rf "$program/app"
    run mv "$program/app.new" "$program/app"
    if live; then
        run env NINFER_VENV="$program/venv" "${NINFER_PYTHON:-python3}" "$program/app/tools/environment.py"
        # The service may not write here, so that it would compile at every start.
        run "$program/venv/bin/python" -m compileall -q "$program/app"
    fi
    if live && command -v restorecon >/dev/null; then run restorecon -R "$program"; fi
}

install_commands() {
    local name link
    run mkdir -p "$root/usr/local/bin"
    for name in "${commands[@]}"; do
        link=$root/usr/local/bin/$name
        if [ -e "$link" ] && ! ours "$link"; then
            echo "install_systemd: $link belongs to something else and stays as it is" >&2
            continue
        fi
        run ln -sfn "/opt/ninfer/venv/bin/$name" "$link"
    done
}

ours() { [ -L "$1" ] && [[ $(readlink "$1") == /opt/ninfer/* ]]; }

install_units() {
    local unit
    run mkdir -p "$units" "$root/etc/ninfer" "$root/usr/lib/sysusers.d"
    for unit in ninfer.service ninfer-fetch@.service; do
        run install -m 0644 "$source_folder/etc/systemd/$unit" "$units/$unit"
    done
    run install -m 0644 "$source_folder/etc/systemd/ninfer.sysusers" "$root/usr/lib/sysusers.d/ninfer.conf"
    # It may come to hold a key: readable by systemd alone, and never overwritten.
    [ -e "$settings" ] || run install -m 0600 "$source_folder/etc/ninfer.env" "$settings"
    run systemd-sysusers --root="${root:-/}" ninfer.conf
    run systemctl --root="${root:-/}" enable ninfer.service
}

start_service() {
    if ! live; then
        echo "next: chroot $root env NINFER_VENV=/opt/ninfer/venv python3 /opt/ninfer/app/tools/environment.py"
        return
    fi
    run systemctl daemon-reload
    [ -z "$start" ] || run systemctl restart --no-block ninfer.service
    echo "installed; follow the start with: journalctl -fu ninfer    settings: $settings"
}

uninstall() {
    local name
    if live; then
        run systemctl stop ninfer.service 'ninfer-fetch@*.service' || true
    fi
    [ ! -e "$units/ninfer.service" ] || run systemctl --root="${root:-/}" disable ninfer.service
    run rm -f "$units/ninfer.service" "$units/ninfer-fetch@.service" "$root/usr/lib/sysusers.d/ninfer.conf"
    for name in "${commands[@]}"; do
        if ours "$root/usr/local/bin/$name"; then run rm -f "$root/usr/local/bin/$name"; fi
    done
    run rm -rf "$program"
    if [ -n "$purge" ]; then
        run rm -rf "$root/var/lib/ninfer" "$root/var/cache/ninfer" "$root/etc/ninfer"
        if live && id ninfer >/dev/null 2>&1; then run userdel ninfer; fi
    fi
    if live; then run systemctl daemon-reload; fi
    [ -n "$purge" ] || echo "removed; kept: $root/var/lib/ninfer (models, keys) and $root/etc/ninfer (settings)"
}

if [ "$action" = uninstall ]; then
    uninstall
else
    install_program
    install_commands
    install_units
    start_service
fi
