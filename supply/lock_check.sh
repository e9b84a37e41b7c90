#!/bin/sh
# supply/lock_check.sh PYTHON...: resolve all pins anew for every Python that is found, without installing anything.
#
# The index is the one that your environment names. Exit code 1: somewhere the pins contradict each other or what an index has;
# 3: there is none of these Pythons, or no index.
set -u
cd "$(dirname "$0")/.." || exit 3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
found=0
failed=0
for python in "$@"; do
  "$python" -m venv "$folder/venv" 2>/dev/null || continue
  found=1
  pip=$folder/venv/bin/pip
  if ! "$pip" download --quiet --no-deps --dest "$folder" attrs >"$folder/log" 2>&1; then
    cat "$folder/log"
    echo "no package index that pip can reach has attrs: nothing was checked"
    exit 3
  fi
  if supply/timed.sh "$python: resolving" "$pip" install --quiet --disable-pip-version-check --dry-run --ignore-installed \
    --constraint constraints.txt '.[dev]' './packages/lab[torch]'; then
    echo "$python: all pins resolve"
  else
    failed=1
    echo "$python: the pins do not resolve"
  fi
  rm -rf "$folder/venv"
done
if [ $found -eq 0 ]; then
  echo "none of these can make a virtual environment: $*"
  exit 3
fi
exit $failed
