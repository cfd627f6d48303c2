#!/bin/sh
# The training side must run on every Python its users train with. For each one that this machine has:
# a fresh environment, the package without extras, and the tests of the rules and the exporter.
set -eu
cd "$(dirname "$0")/.."
found=0
for version in 3.10 3.11 3.12 3.13; do
    # A pyenv shim exists for versions that are not active, so ask the interpreter, not the PATH.
    python=""
    for candidate in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python; do
        if "$candidate" -c "" >/dev/null 2>&1; then python="$candidate"; break; fi
    done
    if [ -z "$python" ]; then echo "Python $version: not installed here"; continue; fi
    found=$((found + 1))
    folder=$(mktemp -d)
    "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --editable . pytest pytest-timeout hypothesis
    echo "Python $version:"
    "$folder/bin/python" -m pytest -q -m "not repro and not browser" tests/rules tests/lint tests/logs tests/exporter
    rm -rf "$folder"
done
[ "$found" -gt 0 ]
