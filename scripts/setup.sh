#!/usr/bin/env bash
# Make .venv what requirements.lock and pyproject.toml say; do nothing when it is already.
#
# Each step leaves a copy of its input in .venv once it is complete. An interrupted step does
# not, so the next run repeats it from the start.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=.venv/bin/python

# Scripts in a virtual environment hold its absolute path: a moved one is a stale one.
locked() { echo "$root" && cat requirements.lock; }
project() { cat pyproject.toml; }
done_before() { [ -x "$python" ] && "$1" | cmp -s - ".venv/done-$1"; }
mark_done() { "$1" >".venv/done-$1"; }

require_java() {
  local java version major
  java=${JAVA_HOME:+$JAVA_HOME/bin/}java
  version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p') || version=
  version=${version#1.} # Java 8 calls itself 1.8
  major=${version%%[!0-9]*}
  [ "${major:-0}" -ge 17 ] && return
  cat >&2 <<MESSAGE
Thulawa needs Java 17 or newer, for Spark. Found with '$java': ${version:-none}.
  Debian, Ubuntu:  apt-get install openjdk-17-jre-headless
  macOS:           brew install openjdk@17
  elsewhere:       set JAVA_HOME to an installed Java 17 or newer
MESSAGE
  exit 1
}

install() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }

# Spark starts many Python processes; without this each may compile what it imports anew
compile() { env -u PYTHONDONTWRITEBYTECODE "$python" -m compileall -q -j 0 "$1" >/dev/null || true; }

done_before locked && done_before project && exit

require_java
if ! done_before locked; then
  base=$(scripts/python.sh)
  echo "Installing the locked dependencies into .venv with $("$base" --version)" >&2
  rm -rf .venv
  "$base" -m venv .venv
  install --require-hashes --requirement requirements.lock
  compile .venv/lib
  mark_done locked
fi
install --no-deps --no-build-isolation --editable .
compile src
echo "Making Spark's classes ready, once, so that it starts sooner" >&2
"$python" -m thulawa.spark.session.jvm_archive >/dev/null 2>&1 || echo "  that failed; it starts as ever" >&2
mark_done project
