#!/usr/bin/env bash
# Write supply/locks/*.txt: every package that a role installs, pinned, with the digests of all its files.
#
# Versions follow constraints.txt; the index is the one that your environment names, and its address is not written. PyTorch
# is in no lock: its wheels differ by accelerator and come from several places, so pin and hash the one that you use.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-.venv/bin/uv}
write() {
  local name=$1
  shift
  { echo "# Made by supply/lock.sh: pip install --no-deps --require-hashes -r supply/locks/$name.txt, then quietbit with --no-deps."
    "$UV" pip compile --quiet --universal --generate-hashes --no-header --no-emit-index-url --no-emit-find-links \
      --no-annotate --python-version 3.11 --constraint constraints.txt "$@" pyproject.toml
  } >"supply/locks/$name.txt.new"
  mv "supply/locks/$name.txt.new" "supply/locks/$name.txt"
}
write base
write flower --extra flower
write nvflare --extra nvflare
