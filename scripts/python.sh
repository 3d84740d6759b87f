#!/usr/bin/env bash
# Print the name of a Python that can make this project's environment; PYTHON=… overrides the search.
set -euo pipefail

# An activated .venv must not be the Python that rebuilds itself.
root=$(cd "$(dirname "$0")/.." && pwd)
PATH=${PATH//"$root/.venv/bin:"/}

for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
  # A command may exist and still not run (version managers' shims, macOS stubs): ask it.
  if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done

cat >&2 <<MESSAGE
Thulawa needs Python 3.11 or newer, with its venv module. Tried: ${PYTHON:-python3 python3.13 python3.12 python3.11}.
  Debian, Ubuntu:  apt-get install python3 python3-venv
  macOS:           brew install python@3.13
  elsewhere:       make setup PYTHON=/path/to/python
MESSAGE
exit 1
