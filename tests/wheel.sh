#!/bin/sh
# Builds the wheel, installs it elsewhere, and tries it from an empty directory: sh tests/wheel.sh [PYTHON]
set -eu
python=${1:-python3}
elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$elsewhere" .
"$python" -m venv "$elsewhere/venv"
PATH=$elsewhere/venv/bin:$PATH
pip install --quiet --disable-pip-version-check "$elsewhere"/sfad-*.whl
mkdir "$elsewhere/empty"
cd "$elsewhere/empty"
sfad version
sfad check-config >/dev/null
sfactl --help >/dev/null
sfactl demo
echo '{"jsonrpc": "2.0", "id": 1, "method": "ping"}' | sfactl mcp | grep -q '"result":{}'
ls "$elsewhere"/venv/lib/python*/site-packages/sfad/units/sfad.service \
    "$elsewhere"/venv/lib/python*/site-packages/sfad/units/user/sfad.service \
    "$elsewhere"/venv/lib/python*/site-packages/sfad/units/user/sfad.socket >/dev/null
left=$(find . -mindepth 1)
[ -z "$left" ] || { echo "the demo left files behind: $left" >&2; exit 1; }
echo "wheel: installed and tried from an empty directory"
