#!/usr/bin/env bash
# Write requirements.lock from pyproject.toml. Pins stay as they are unless UPGRADE=1 is given.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=$(command -v uv || true)
if [ -z "$uv" ]; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  "$(scripts/python.sh)" -m venv "$scratch"
  "$scratch/bin/pip" install --quiet --disable-pip-version-check uv
  uv=$scratch/bin/uv
fi

"$uv" pip compile pyproject.toml --group dev --extra speed \
  --universal --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" \
  ${UPGRADE:+--upgrade} --quiet --output-file requirements.lock
