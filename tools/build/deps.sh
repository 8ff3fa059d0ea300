#!/bin/sh
# deps.sh - install the missing Debian packages of tools/build/packages.txt.
#
# usage: deps.sh [--quiet] [GROUP...]      groups: build, test, engines, peers; default: the first two
#   --quiet  print nothing if nothing is missing
#
# Runs apt-get as root, or through sudo. If neither is possible, prints the command for an administrator and exits with
# status 1. Without dpkg, packages cannot be checked: prints a note (with --quiet: nothing) and exits with status 0.
set -u

list=$(dirname -- "$0")/packages.txt
quiet=
if [ "${1:-}" = --quiet ]; then
    quiet=1
    shift
fi
groups=${*:-build test}

wanted=
for group in $groups; do
    names=$(awk -v group="$group" '$1 == group { print $2 }' "$list") || exit 1
    [ -n "$names" ] || { echo "deps: there is no group '$group' in $list" >&2; exit 2; }
    wanted="$wanted $names"
done

if ! command -v dpkg-query >/dev/null 2>&1; then
    # shellcheck disable=SC2086  # names are words
    [ -n "$quiet" ] || echo "deps: dpkg is not installed; install the equivalents of these Debian packages:" $wanted
    exit 0
fi

# shellcheck disable=SC2086
present=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' $wanted 2>/dev/null | awk '$2 == "installed" { print $1 }')
missing=
for name in $wanted; do
    printf '%s\n' "$present" | grep -qxF -- "$name" || missing="$missing $name"
done
if [ -z "$missing" ]; then
    [ -n "$quiet" ] || echo "deps: all packages are installed"
    exit 0
fi

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && { [ -t 0 ] || sudo -n true 2>/dev/null; }; then
        as_root=sudo
    else
        echo "deps: missing:$missing" >&2
        echo "deps: installing packages requires root or sudo; ask an administrator to run:" >&2
        echo "    apt-get update && apt-get install --yes --no-install-recommends$missing" >&2
        exit 1
    fi
fi

update()
{
    echo "deps: apt-get update"
    $as_root apt-get update --quiet
}

install()
{
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends $missing
}

# Return true if there are package lists; a fresh container has none.
have_lists()
{
    for f in /var/lib/apt/lists/*_Packages*; do
        [ -e "$f" ] && return 0
    done
    return 1
}

echo "deps: installing$missing"
if have_lists; then
    install && exit 0
    echo "deps: the installation failed; the package lists may be outdated" >&2
fi
update || exit 1
install
