#!/usr/bin/env bash
# Copyright The Lockstep Authors.
# SPDX-License-Identifier: Apache-2.0
#
# A canary release by hand, with the calls of any host, in their order.
# grpcurl gets the API from the driver by reflection, so only this script is needed.
set -euo pipefail

usage() {
  cat >&2 <<'USAGE'
usage: release.sh ADDRESS NAMESPACE WORKLOAD [BATCHES]   take the workload through a canary release
       release.sh --abort ADDRESS NAMESPACE WORKLOAD     roll back the release in flight

ADDRESS is where `lockstep serve` listens: unix:///path or host:port.
WORKLOAD is the name of a LeaderWorkerSet, or disaggregatedset/NAME.
BATCHES are the groups at the new revision after each batch: 25%,50%,100% if not given.
RELEASE_ID in the environment resumes an earlier release, GRPCURL is the grpcurl to use. For host:port, where the driver needs
--reflection, CACERT is the file with the CA of its certificate and TOKEN a token for the audience lockstep.
USAGE
  exit 2
}

intent=PROMOTE
if [[ ${1:-} == --abort ]]; then
  intent=ROLLBACK
  shift
fi
(($# == 3 || $# == 4)) || usage
kind=LeaderWorkerSet
[[ $3 == disaggregatedset/* ]] && kind=DisaggregatedSet
address=$1 workload="{\"namespace\": \"$2\", \"kind\": \"$kind\", \"name\": \"${3#disaggregatedset/}\"}"
IFS=, read -ra batches <<<"${4:-25%,50%,100%}"

# The default is the version that the repository pins.
if [[ -n ${GRPCURL:-} ]]; then
  grpcurl=("$GRPCURL")
else
  grpcurl=(go -C "$(dirname "${BASH_SOURCE[0]}")/../.." tool -modfile=tools/proto/go.mod grpcurl)
fi

# A unix socket needs no credentials. Over TCP the call has a token; grpcurl reads it from the environment, not from its arguments,
# which other users can list.
# shellcheck disable=SC2016
case $address in
  unix://*) target=(-plaintext -unix "${address#unix://}") ;;
  *) target=(-cacert "${CACERT:?is the file with the CA of the server}" -expand-headers -H 'authorization: Bearer ${TOKEN}' "$address") ;;
esac

# call RPC REQUEST: call an RPC, and set $answer to the response as JSON.
# UNAVAILABLE (the API server, or a driver that has just started) and ABORTED (a conflict) are transient, so the call is
# retried: it is idempotent. All other errors end the script, also ABORTED with REVISION_CHANGED: the template is not the one
# that the release started with.
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

# field NAME: print a field of the context in $answer. The names are those of batch.proto, in camelCase.
field() {
  local value
  value=$(sed -n "/^ *\"$1\": /{s///p;q}" <<<"$answer")
  value=${value%,} value=${value#\"}
  printf '%s' "${value%\"}"
}

# show STEP: print the status. The state is all that a host needs for the next step; SPEC.md has the table.
show() {
  local state
  state=$(field state)
  printf '%-11s %-12s new %s/%s, old %s/%s: %s\n' "$1" "${state#STATE_}" "$(field updatedReady)" "$(field desired)" \
    "$(field stableReady)" "$(field replicas)" "$(field message)"
}

# finalize INTENT: promote (PROMOTE) or roll back (ROLLBACK) the release, and wait until that is done.
# The first call records the intent, which the driver completes; the others only wait. PROMOTE names the revision, so that a
# newer template is not promoted.
finalize() {
  while :; do
    call Finalize "{\"workload\": $workload, \"releaseId\": \"$id\", \"intent\": \"FINALIZE_INTENT_$1\", \"updateRevision\": \"${revision:-}\", \"wait\": \"10s\"}"
    show "${1,,}"
    [[ $(field "done") == true ]] && return
    sleep 1
  done
}

# A host first gets the driver's capabilities, and calls nothing else.
call GetDriverInfo '{}'
printf 'driver %s %s\n' "$(field name)" "$(field version)"

if [[ $intent == ROLLBACK ]]; then
  # CalculateBatchContext is read-only. It returns the release in flight, whichever host started it.
  call CalculateBatchContext "{\"workload\": $workload}"
  id=$(field releaseId)
  [[ -n $id ]] || { echo "there is no release" >&2 && exit 1; }
  finalize ROLLBACK
  exit
fi

# Adopt puts the workload under hold: from then on a template change moves no pod until it is released. Adopt before the
# change. On a workload that is under hold already it changes nothing.
call Adopt "{\"workload\": $workload}"
show adopt

# Initialize starts a release with an id that the host chooses, and creates the canary with no groups. The driver first records
# id and policy on the workload. The same id and policy resume the release.
id=${RELEASE_ID:-grpcurl-$(date -u +%Y%m%d-%H%M%S)-$$}
printf 'release %s\n' "$id"
policy=$(printf ', "%s"' "${batches[@]}")
policy="{\"style\": \"STYLE_CANARY\", \"batches\": [${policy:2}]}"
call Initialize "{\"workload\": $workload, \"releaseId\": \"$id\", \"policy\": $policy, \"owner\": \"grpcurl\", \"wait\": \"10s\"}"
show initialize
revision=$(field updateRevision)
case $(field state) in
  STATE_NOTHING_TO_RELEASE)
    echo 'The workload is under hold. Change its template, then run this again.'
    exit
    ;;
  STATE_PROMOTING | STATE_COMPLETED) # The release of RELEASE_ID is past its batches.
    finalize PROMOTE
    exit
    ;;
esac
trap '(($? == 0)) || printf "The release stays where it is.\n  to resume:    RELEASE_ID=%s %s\n  to roll back: %s\n" \
  "$id" "$0 $*" "$0 --abort $1 $2 $3" >&2' EXIT

# UpgradeBatch moves the release to a batch. With `wait` the call returns when the batch is ready or the time is over. "Not
# ready yet" is not an error, so call again. With the revision the call is refused with ABORTED if the template has changed.
for batch in "${!batches[@]}"; do
  while :; do
    call UpgradeBatch "{\"workload\": $workload, \"releaseId\": \"$id\", \"batch\": $batch, \"updateRevision\": \"$revision\", \"wait\": \"10s\"}"
    show "batch ${batches[batch]}"
    case $(field state) in
      STATE_READY) break ;;
      STATE_UPGRADING | STATE_VERIFYING | STATE_PREPARING) ;;
      *) exit 1 ;; # failed, restarted for another template, or ended by another host: the user decides.
    esac
  done
  # Here a host checks its metrics. No group moves until the next call.
done

finalize PROMOTE
