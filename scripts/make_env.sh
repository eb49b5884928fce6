#!/usr/bin/env bash
# Makes the virtual environment of the embedded default from locks/cpu.txt:  scripts/make_env.sh .venv
# PYTHON names the interpreter to use; otherwise the first of python3.12, python3.11 and python3 that fits.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:?usage: scripts/make_env.sh FOLDER}
stamp=$venv/.installed-$(cat locks/cpu.txt pyproject.toml | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0

fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "the lock is for Linux on x86_64, not $(uname -s) on $(uname -m)."
if [ -n "${PYTHON:-}" ]; then
  fits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 or 3.12; name one that is, for example PYTHON=python3.12."
else
  for candidate in python3.12 python3.11 python3; do
    fits "$candidate" && PYTHON=$candidate && break
  done
  [ -n "${PYTHON:-}" ] || fail "no Python 3.11 or 3.12 was found; install one and name it: make report PYTHON=/path/to/python3.12"
fi
# the interpreter itself, not the one of an active environment, which may be the one that is made anew
PYTHON=$("$PYTHON" -c 'import sys; print(sys._base_executable)')
"$PYTHON" -c 'import venv, ensurepip' 2>/dev/null || fail "$PYTHON has no venv module; install it (Debian: apt install python3-venv)."
command -v c++ >/dev/null || fail "no C++ compiler was found, and vLLM needs one; install it (Debian: apt install g++)."

rm -rf "$venv"
"$PYTHON" -m venv "$venv"
echo "Installing the locked packages into $venv (about 8 GB; minutes)…" >&2
awk '/^[a-zA-Z0-9]/ { wanted = /^uv==/ } wanted' locks/cpu.txt >"$venv/uv.txt"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$venv/uv.txt"
# uv is several times faster; pip is the way where its index is configured for pip only. Both compile what they install:
# otherwise the first workers would all do that at once, and where PYTHONDONTWRITEBYTECODE is set every start again
VIRTUAL_ENV=$PWD/$venv "$venv/bin/uv" pip install --quiet --compile-bytecode --require-hashes --no-deps -r locks/cpu.txt ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --require-hashes --no-deps -r locks/cpu.txt
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
touch "$stamp"
