#!/bin/bash
# analyze.sh - static analysis with what is installed: cppcheck and clang-tidy.
#
# usage: analyze.sh COMPILER-FLAG...
# Exit: 1 when one of them complains.
set -u
status=0
mapfile -d '' -t sources < <(find agent client cuda proto shm tools docs -name '*.c' -print0)

if command -v cppcheck >/dev/null 2>&1; then
    defines=()
    for flag in "$@"; do
        case $flag in
        -D* | -I*) defines+=("$flag") ;;
        esac
    done
    cppcheck --quiet --enable=warning,portability --inline-suppr --suppress=missingIncludeSystem --error-exitcode=1 --std=c11 \
        -j "$(nproc)" "${defines[@]}" "${sources[@]}" || status=1
else
    echo 'analyze: cppcheck is not installed; left out'
fi

if command -v clang-tidy >/dev/null 2>&1; then
    # Left out: what wants the functions of Annex K, which no C library here has, and matters of taste.
    checks='-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*,bugprone-*'
    for check in easily-swappable-parameters narrowing-conversions reserved-identifier assignment-in-if-condition \
        macro-parentheses branch-clone suspicious-include suspicious-string-compare implicit-widening-of-multiplication-result; do
        checks=$checks,-bugprone-$check
    done
    # The first line of each finding; `clang-tidy` on the one file says how it came to it.
    found=$(printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -I '{}' clang-tidy --quiet --checks="$checks" '{}' -- "$@" \
        2>/dev/null | grep -E '^/.* (warning|error): ' | sed "s|^$PWD/||" | sort -u)
    [ -z "$found" ] || { printf '%s\n' "$found"; status=1; }
else
    echo 'analyze: clang-tidy is not installed; left out'
fi
exit $status
