#!/bin/sh
# supply/versions.sh newest|oldest [PYTHON]: the tests of core and engines with the newest packages that an index has, or the oldest that
# pyproject.toml admits.
#
# In environments that are thrown away, one for each engine, because the engines pin what the other one needs. A warning is an error as
# ever, except where an engine warns of itself.
set -eu
cd "$(dirname "$0")/.."
case ${1:-} in
  newest) resolution=highest ;;
  oldest) resolution=lowest-direct ;;
  *) echo "usage: supply/versions.sh newest|oldest [PYTHON]"; exit 2 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for extra in accounting flower nvflare; do
  case $extra in
    accounting) tests="tests/core/native tests/core/golden tests/core/wire tests/core/mechanism tests/core/privacy tests/core/kernel tests/core/laws" ;;
    *) tests="tests/federation/contract tests/engines/$extra" ;;
  esac
  "${2:-python3}" -m venv --clear "$work/venv"
  bin=$work/venv/bin
  "$bin/python" -m pip install --quiet --disable-pip-version-check uv
  supply/timed.sh "$extra, $1: installing" "$bin/python" -m uv pip install --quiet --python "$bin/python" --resolution $resolution \
    --editable ".[torch,$extra]"
  "$bin/python" -m uv pip install --quiet --python "$bin/python" pytest pytest-xdist hypothesis mpmath scikit-learn matplotlib
  "$bin/python" -m uv pip install --quiet --python "$bin/python" --no-deps --editable packages/lab
  "$bin/python" -m uv pip list --python "$bin/python" | grep -E '^(numpy|scipy|torch|flwr|nvflare|cryptography) '
  # shellcheck disable=SC2086
  OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 "$bin/python" -m pytest -q -p no:cacheprovider -n auto -m 'not long' $tests \
    -o 'filterwarnings=error
      ignore::DeprecationWarning:(flwr|nvflare|ray|torch|google)
      ignore::FutureWarning:(flwr|nvflare|ray|torch|google)' || failed=1
done
exit $failed
