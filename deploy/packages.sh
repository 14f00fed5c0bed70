#!/bin/sh
# Install Debian's packages for commands that are missing, without starting their services:
#
#   deploy/packages.sh COMMAND:PACKAGE ...
#
# If that is not possible, it prints the packages to install, and exits with 0: the tests then fail.
set -eu
PATH=$PATH:/usr/sbin:/sbin

missing=
for pair in "$@"; do
    command -v "${pair%%:*}" >/dev/null || missing="$missing ${pair#*:}"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "cohort: some checks need programs that are not here: apt-get install --no-install-recommends$missing" >&2
    exit 0
fi
echo "cohort: installing$missing"
# Asked before a package starts its service: 101 forbids it.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' >$policy
    chmod +x $policy
    trap 'rm -f $policy' EXIT
fi
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086  # one word a package
if ! { apt-get update -qq && apt-get install -qq --yes --no-install-recommends $missing >/dev/null; }; then
    echo "cohort: that failed; the checks that need these programs will also fail" >&2
fi
