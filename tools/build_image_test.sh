#!/usr/bin/env bash
# Builds the Dockerfile as it is and starts the image, without a Docker engine and without a registry.
# Needs root and: apt-get install -y --no-install-recommends buildah podman runc debootstrap
#   NINFER_BASE_ROOT    a bootstrapped Debian 12 (only read); made with debootstrap when absent
#   NINFER_IMAGE_WORK   where to work (3 GB) [.scratch/image]; what is there is used again
#   PIP_FIND_LINKS, SSL_CERT_FILE   given to the build, not to the image
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for program in buildah podman runc curl; do
    command -v "$program" >/dev/null || {
        echo "build_image_test: no $program; type: apt-get install -y --no-install-recommends buildah podman runc debootstrap curl" >&2
        exit 77
    }
done
work=${NINFER_IMAGE_WORK:-$PWD/.scratch/image}
mkdir -p "$work"
storage=(--root "$work/store" --runroot "$work/run" --storage-driver overlay)
base=localhost/debian:bookworm-slim
image=localhost/ninfer:test
port=${NINFER_TEST_PORT:-18480}

build() { buildah "${storage[@]}" "$@"; }
engine() { podman "${storage[@]}" --cgroup-manager cgroupfs --runtime "$(command -v runc)" "$@"; }
say() { echo "== $*"; }
fail() {
    echo "build_image_test: $*" >&2
    exit 1
}

make_base() {
    build inspect "$base" >/dev/null 2>&1 && return
    local root=${NINFER_BASE_ROOT:-$work/rootfs} container
    [ -d "$root/etc" ] || debootstrap --variant=minbase bookworm "$root" >"$work/debootstrap.log"
    say "base from $root"
    tar -C "$root" --one-file-system --exclude=./srv --exclude=./tmp --exclude=./var/cache/apt -cf "$work/base.tar" .
    container=$(build from scratch)
    build add -q "$container" "$work/base.tar" / >/dev/null
    build run --isolation chroot "$container" -- install -d -m 1777 /tmp
    build commit -q "$container" "$base" >/dev/null
    build rm "$container" >/dev/null
    rm -f "$work/base.tar"
}

build_image() {
    local mounts=() arguments=(--build-arg "BASE=$base")
    {
        echo '[global]'
        [ -z "${SSL_CERT_FILE:-}" ] || echo 'cert = /run/host-ca.crt'
        [ ! -d "${PIP_FIND_LINKS:-/nonexistent}" ] || echo "find-links = $PIP_FIND_LINKS"
    } >"$work/pip.conf"
    [ -z "${SSL_CERT_FILE:-}" ] || mounts+=(-v "$SSL_CERT_FILE:/run/host-ca.crt:ro")
    [ ! -d "${PIP_FIND_LINKS:-/nonexistent}" ] || mounts+=(-v "$PIP_FIND_LINKS:$PIP_FIND_LINKS:ro")
    say 'build'
    build bud --isolation chroot --pull-never --format docker --layers "${arguments[@]}" "${mounts[@]}" \
        -v "$work/pip.conf:/etc/pip.conf:ro" -t "$image" .
    rm -f "$work/pip.conf"
}

inside() { # arguments of podman run, then --, then the command
    local flags=()
    while [ "$1" != -- ]; do flags+=("$1"); shift; done
    shift
    engine run --rm --no-healthcheck --network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
        --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges "${flags[@]}" "$image" "$@"
}

check_contents() {
    say 'contents'
    [ "$(inside -- id -u)" = 10001 ] || fail 'the image does not run as uid 10001'
    inside -- python -c '
import shutil, sys
for name in ("ninfer-appliance", "ninfer-serve", "ninfer", "ninfer-artifact", "download-model"):
    assert shutil.which(name), f"{name} is not on PATH"
for name in ("cc", "gcc", "clang", "curl", "git"):
    assert not shutil.which(name), f"{name} is in the image of the CPU build"
assert not sys.flags.optimize
import engine.options, torch
print("torch", torch.__version__)
'
    inside -- sh -c 'if (echo x >/opt/ninfer/app/x) 2>/dev/null; then exit 1; fi; echo x >/workspace/state/x' ||
        fail 'the program is writable, or the volumes are not'
    engine inspect --type image "$image" --format '{{json .Config.Healthcheck}}' 2>/dev/null | grep -q healthcheck ||
        fail 'the image has no health check'
}

start() { # name, then arguments of podman run
    local name=$1
    shift
    say "start ($name)"
    engine run -d --name "$name" --no-healthcheck --network host --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
        --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges -e "NINFER_PORT=$port" -e NINFER_OPEN_NETWORK=without-a-key "$@" "$image" \
        >/dev/null
    local tries
    for tries in $(seq 240); do
        if engine exec "$name" python -m appliance.healthcheck >/dev/null 2>&1; then
            say "healthy after about $tries s"
            return
        fi
        [ "$(engine inspect "$name" --format '{{.State.Running}}')" = true ] || break
        sleep 1
    done
    engine logs "$name" | tail -50
    fail 'the box did not become healthy'
}

ask() {
    local answer
    answer=$(curl --fail-with-body -sS --max-time 120 "http://127.0.0.1:$port/v1/chat/completions" \
        -H 'Content-Type: application/json' \
        -d '{"model": "nano", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}')
    grep -q '"completion_tokens"' <<<"$answer" || fail "no answer: $answer"
    echo "$answer" | head -c 300
    echo
}

finish() {
    engine stop -t 60 "$1" >/dev/null
    local code
    code=$(engine inspect "$1" --format '{{.State.ExitCode}}')
    engine rm "$1" >/dev/null
    [ "$code" = 0 ] || fail "stopping the box ended with $code"
}

clean_up() {
    local name
    for name in ninfer-test ninfer-test-uid; do engine rm -f "$name" >/dev/null 2>&1 || true; done
    # buildah leaves the layers it copied into mounted.
    findmnt -rno TARGET | grep -E "^$work/store/overlay(/.*/merged)?$" | sort -r | xargs -r umount || true
}
trap clean_up EXIT

make_base
build_image
clean_up
check_contents
if [ "${1:-}" != --no-start ]; then
    start ninfer-test
    ask
    finish ninfer-test
    # Another uid than the image's, with folders of the host (cases C9).
    rm -rf "$work/data" && install -d -o 12345 -g 12345 "$work"/data/{models,cache,state}
    start ninfer-test-uid --user 12345:12345 -v "$work/data/models:/workspace/models:ro" \
        -v "$work/data/cache:/workspace/cache" -v "$work/data/state:/workspace/state"
    ask
    finish ninfer-test-uid
    # A wrong setting ends the container with the status that says so.
    code=0
    inside -e NINFER_PORT=99999 -- ninfer-appliance up || code=$?
    [ "$code" = 2 ] || fail "a wrong port ended with $code, not 2"
fi
say 'good'
