#!/bin/bash
# analyze.sh - run the static analysis tools that are installed: cppcheck and clang-tidy.
#
# usage: analyze.sh COMPILER-FLAG... Exit status: 1 if one of them reports a finding.
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
    echo 'analyze: skipping cppcheck: it is not installed'
fi

if command -v clang-tidy >/dev/null 2>&1; then
    # Disabled: checks that require the functions of Annex K, which C libraries here do not have, and checks of style.
    checks='-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*,bugprone-*'
    for check in easily-swappable-parameters narrowing-conversions reserved-identifier assignment-in-if-condition \
        macro-parentheses branch-clone suspicious-include suspicious-string-compare implicit-widening-of-multiplication-result; do
        checks=$checks,-bugprone-$check
    done
    # Print only the first line of each finding; `clang-tidy` on that file prints the notes.
    found=$(printf '%s\0' "${sources[@]}" | xargs -0 -P "$(nproc)" -I '{}' clang-tidy --quiet --checks="$checks" '{}' -- "$@" \
        2>/dev/null | grep -E '^/.* (warning|error): ' | sed "s|^$PWD/||" | sort -u)
    [ -z "$found" ] || { printf '%s\n' "$found"; status=1; }
else
    echo 'analyze: skipping clang-tidy: it is not installed'
fi
exit $status
