#!/bin/sh
# Put Compose v2 at FOLDER/bin/docker-compose, from Debian 13's package. It installs nothing, and needs no root:
#
#   deploy/containers/compose.sh FOLDER
set -eu
folder=$1 apt=$1/compose

# shellcheck disable=SC2016  # apt expands it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 '/debian/*$')
rm -rf "$apt"
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$folder/bin"
: >"$apt/state/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" >"$apt/sources.list"
cd "$apt"
private() {
    apt-get -qq -o "Dir::State=$PWD/state" -o "Dir::State::status=$PWD/state/status" -o "Dir::Cache=$PWD/cache" \
        -o "Dir::Etc::sourcelist=$PWD/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o APT::Sandbox::User="$(id -un)" "$@"
}
private update
private download docker-compose
dpkg-deb -x docker-compose_*.deb .
mv usr/libexec/docker/cli-plugins/docker-compose ../bin/docker-compose
cd ..
rm -rf compose
