#!/usr/bin/env bash
# Makes the two hash-checked locks from pyproject.toml. Needs uv. torch and triton are pinned in etc/wheels.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
compile=(uv pip compile --universal --generate-hashes --python-version 3.11 --custom-compile-command tools/lock.sh
    --no-emit-package torch --no-emit-package triton --extra torch pyproject.toml "$@")
"${compile[@]}" -o requirements.lock
"${compile[@]}" --extra test -c requirements.lock -o requirements-test.lock
