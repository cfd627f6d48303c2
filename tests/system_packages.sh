#!/bin/sh
# Installs the Debian packages that the tests use, where that is allowed; otherwise says which are
# missing and lets the tests that need them skip with their reason.
set -u
missing=""
for package in "$@"; do
    dpkg -s "$package" >/dev/null 2>&1 || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "Not a Debian system: the tests that need$missing will be skipped."
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo"
else
    echo "No right to install packages: the tests that need$missing will be skipped."
    echo "To run them: sudo apt-get install$missing"
    exit 0
fi
echo "Installing$missing …"
$as_root apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null ||
    echo "apt-get could not install$missing: the tests that need them will be skipped."
# Debian starts the servers it installs; the tests start their own on free ports.
if command -v systemctl >/dev/null 2>&1; then
    $as_root systemctl stop prometheus prometheus-alertmanager >/dev/null 2>&1
fi
exit 0
