#!/usr/bin/env bash
# supply/containers.sh [ROLE...]: build the owners' images without a registry or a daemon, and run the doctor in each.
#
# The base is a Debian made by mmdebstrap from the machine's own sources of packages, with Python 3.11. Run it as root, with buildah and
# mmdebstrap installed and the wheel in dist/. The build trusts the certificates that the machine trusts. BASE names a base image
# instead, or the tar file of one.
set -euo pipefail
cd "$(dirname "$0")/.."
roles=("$@")
[ ${#roles[@]} -gt 0 ] || roles=(flower-supernode nvflare-site)
certificates=/etc/ssl/certs/ca-certificates.crt
work=$(mktemp -d)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
b=(buildah --root "$work/storage" --runroot "$work/run")
finish() {
  "${b[@]}" rm --all >/dev/null 2>&1 || true
  rm -rf "$work"
}
trap finish EXIT

base=${BASE:-$work/base.tar}
if [ -z "${BASE:-}" ]; then
  mmdebstrap --variant=minbase --include=python3,python3-venv,ca-certificates bookworm "$base"
fi
if [ -f "$base" ]; then
  container=$("${b[@]}" from scratch)
  "${b[@]}" add -q "$container" "$base" /
  # What the image python:3.11-slim has: python and pip on the path, of an environment that is nobody else's.
  "${b[@]}" run "$container" -- python3 -m venv /usr/local
  "${b[@]}" config --env PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin "$container"
  "${b[@]}" commit -q --rm "$container" base >/dev/null
  base=localhost/base
fi

for role in "${roles[@]}"; do
  echo "== $role"
  "${b[@]}" build -q --volume "$certificates:$certificates:ro" --build-arg BASE="$base" -f "deploy/$role/Containerfile" -t "$role" . >/dev/null
  container=$("${b[@]}" from "$role")
  "${b[@]}" run "$container" -- quietbit doctor
  if "${b[@]}" run "$container" -- ls /var/lib/quietbit 2>/dev/null; then
    echo "the app of $role can read the ledger's folder"
    exit 1
  fi
  "${b[@]}" run --user 10001:10000 "$container" -- quietbit node init /var/lib/quietbit/policy.toml --epsilon 8 \
    --adjacency zero-out --largest-clip 1 --releases 200 --releases-per-day 20
  "${b[@]}" rm "$container" >/dev/null
  "${b[@]}" rmi "$role" >/dev/null
done
