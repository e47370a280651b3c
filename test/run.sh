#!/usr/bin/env bash
# Runs end-to-end tests: test/run.sh PACKAGES [FLAGS OF GO TEST...], from the repository's root.
#
# They share two cores with whatever else the machine does, so up to three tests that fail run once more, and the
# summary names them. A broken rule (what Lockstep promises, as the API server's events or the requests show it) is not
# excused by a second run in which it holds.
set -euo pipefail

sum() { "${GO:-go}" tool -modfile="$PWD/tools/test/go.mod" gotestsum "$@"; }

events=$(mktemp)
trap 'rm -f "$events"' EXIT
status=0
sum --format standard-verbose --jsonfile "$events" --rerun-fails=1 --rerun-fails-max-failures=3 --rerun-fails-run-root-test --packages="$1" \
  -- -tags e2e -count 1 "${@:2}" || status=$?
if grep -q 'rule broken: ' "$events"; then
  grep -o 'rule broken: [^"]*' "$events" | cut -c -200 | head -3
  status=1
fi
if grep -q '"Action":"fail"' "$events"; then
  # The names alone, for who sees only the end.
  if [ "$status" -eq 0 ]; then echo "failed once, passed when run again:"; else echo "failed:"; fi
  sum --format dots --hide-summary output,skipped --raw-command -- cat "$events" | grep '^=== FAIL' | sort -u || true
fi
exit "$status"
