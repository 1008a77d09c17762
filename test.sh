#!/usr/bin/env bash
# All checks:  ./test.sh     slow ones too: ./test.sh nightly     on an NVIDIA card: ./test.sh gpu
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

lane=${1:-quick}
case "$lane" in
quick) marks='not nightly and not gpu' ;;
nightly) marks='not gpu' ;;
gpu) marks='gpu' ;;
*)
    echo "test.sh: unknown lane '$lane'; it is quick, nightly or gpu" >&2
    exit 2 ;;
esac

python=${NINFER_PYTHON:-python3}
venv=$("$python" tools/environment.py --test)
bin=$venv/bin
# Test models are tiny: more threads only wait for each other.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

"$bin/ruff" format --check .
"$bin/ruff" check .
"$bin/mypy"
exec "$bin/python" -m pytest -m "$marks"
