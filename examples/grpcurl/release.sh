#!/usr/bin/env bash
# Copyright The Lockstep Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A complete canary release by hand, with the calls of any host, in the same order. grpcurl reads the API from the driver
# (reflection), so this script needs no other file.
set -euo pipefail

usage() {
  cat >&2 <<'USAGE'
usage: release.sh ADDRESS NAMESPACE WORKLOAD [BATCHES]   take the workload through a canary release
       release.sh --abort ADDRESS NAMESPACE WORKLOAD     roll back the release that is under way

ADDRESS is where `lockstep serve` listens: unix:///path or host:port.
BATCHES are the groups at the new revision after each batch: 25%,50%,100% if not given.
RELEASE_ID in the environment goes on with an earlier release, GRPCURL names the grpcurl to use.
USAGE
  exit 2
}

intent=PROMOTE
if [[ ${1:-} == --abort ]]; then
  intent=ROLLBACK
  shift
fi
(($# == 3 || $# == 4)) || usage
address=$1 workload="{\"namespace\": \"$2\", \"name\": \"$3\"}"
IFS=, read -ra batches <<<"${4:-25%,50%,100%}"

# Without GRPCURL, the version that the repository pins.
if [[ -n ${GRPCURL:-} ]]; then
  grpcurl=("$GRPCURL")
else
  grpcurl=(go -C "$(dirname "${BASH_SOURCE[0]}")/../.." tool -modfile=tools/go.mod grpcurl)
fi

# A unix socket or loopback needs no certificate. For any other address add -cert, -key and -cacert here.
case $address in
  unix://*) target=(-plaintext -unix "${address#unix://}") ;;
  *) target=(-plaintext "$address") ;;
esac

# call RPC REQUEST makes one call and stores the response, as JSON, in $answer. UNAVAILABLE (the API server, or a driver
# that has just started) and ABORTED (a conflict) are transient, so the call is repeated, which is idempotent. Any other
# error ends the script. So does ABORTED with REVISION_CHANGED, because the template is no longer that of this release.
call() {
  local tries=0
  until answer=$("${grpcurl[@]}" -emit-defaults -d "$2" "${target[@]}" "lockstep.v1alpha1.WorkloadDriver/$1" 2>&1); do
    if [[ ! $answer =~ Code:\ (Aborted|Unavailable) || $answer == *REVISION_CHANGED* ]] || ((++tries == 30)); then
      printf '%s failed:\n%s\n' "$1" "$answer" >&2
      exit 1
    fi
    sleep 1
  done
}

# field NAME prints a value of the context in $answer. The names are those in batch.proto, in camelCase.
field() {
  local value
  value=$(sed -n "/^ *\"$1\": /{s///p;q}" <<<"$answer")
  value=${value%,} value=${value#\"}
  printf '%s' "${value%\"}"
}

# show STEP prints the state of the release, on which a host bases its decision; SPEC.md has the table.
show() {
  local state
  state=$(field state)
  printf '%-11s %-12s new %s/%s, old %s/%s: %s\n' "$1" "${state#STATE_}" "$(field updatedReady)" "$(field desired)" \
    "$(field stableReady)" "$(field replicas)" "$(field message)"
}

# finalize INTENT ends the release (PROMOTE or ROLLBACK), and repeats the call until it is done. The first call is enough
# for the driver, which completes it without further calls; the others only wait. PROMOTE passes the revision, so that a
# template that has changed since is not promoted unseen.
finalize() {
  while :; do
    call Finalize "{\"workload\": $workload, \"releaseId\": \"$id\", \"intent\": \"FINALIZE_INTENT_$1\", \"updateRevision\": \"${revision:-}\", \"wait\": \"10s\"}"
    show "${1,,}"
    [[ $(field "done") == true ]] && return
    sleep 1
  done
}

# A host asks for the driver's capabilities first, and calls only what they include.
call GetDriverInfo '{}'
printf 'driver %s %s\n' "$(field name)" "$(field version)"

if [[ $intent == ROLLBACK ]]; then
  # CalculateBatchContext is read-only. It names the release in progress, also of another host.
  call CalculateBatchContext "{\"workload\": $workload}"
  id=$(field releaseId)
  [[ -n $id ]] || { echo "there is no release" >&2 && exit 1; }
  finalize ROLLBACK
  exit
fi

# Adopt places the workload under hold: from now on a template change restarts no pod until a release does. Call it once,
# before the change; on an adopted workload it changes nothing.
call Adopt "{\"workload\": $workload}"
show adopt

# Initialize starts a release with an id that the host chooses, and creates the canary with 0 groups. The driver first
# records id and policy on the workload itself. The same id and policy continue the same release.
id=${RELEASE_ID:-grpcurl-$(date -u +%Y%m%d-%H%M%S)-$$}
printf 'release %s\n' "$id"
policy=$(printf ', "%s"' "${batches[@]}")
policy="{\"style\": \"STYLE_CANARY\", \"batches\": [${policy:2}]}"
call Initialize "{\"workload\": $workload, \"releaseId\": \"$id\", \"policy\": $policy, \"owner\": \"grpcurl\", \"wait\": \"10s\"}"
show initialize
revision=$(field updateRevision)
case $(field state) in
  STATE_NOTHING_TO_RELEASE)
    echo 'The workload is held. Change its template, then run this again.'
    exit
    ;;
  STATE_PROMOTING | STATE_COMPLETED) # RELEASE_ID names a release that is past its batches.
    finalize PROMOTE
    exit
    ;;
esac
trap '(($? == 0)) || printf "The release stays where it is.\n  to go on:     RELEASE_ID=%s %s\n  to roll back: %s\n" \
  "$id" "$0 $*" "$0 --abort $1 $2 $3" >&2' EXIT

# UpgradeBatch moves the release to a batch. With `wait` the call returns once the batch is ready or the time has expired:
# "not ready yet" is no error, so repeat the call. With the revision, a template that changed after the decision is refused
# with ABORTED.
for batch in "${!batches[@]}"; do
  while :; do
    call UpgradeBatch "{\"workload\": $workload, \"releaseId\": \"$id\", \"batch\": $batch, \"updateRevision\": \"$revision\", \"wait\": \"10s\"}"
    show "batch ${batches[batch]}"
    case $(field state) in
      STATE_READY) break ;;
      STATE_UPGRADING | STATE_VERIFYING | STATE_PREPARING) ;;
      *) exit 1 ;; # FAILED, restarted for another template, or ended by another host: the user decides.
    esac
  done
  # Here a host checks its metrics. Nothing changes until the next call.
done

finalize PROMOTE
