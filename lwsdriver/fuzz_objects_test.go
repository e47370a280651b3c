// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"encoding/json"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// maxFuzzed is how many bytes a look at a workload with a few hostile objects may allocate.
const maxFuzzed = 4 << 20

var fuzzedPhases = []record.Phase{record.Progressing, record.Promoting, record.RollingBack, record.CleaningUp, record.Promoted}

// FuzzPod: whatever a pod with LWS's labels contains, a look at its workload does not panic, decides within the invariants, and costs
// little; and of the pod little is kept.
func FuzzPod(f *testing.F) {
	f.Add(`{"metadata":{"labels":{"leaderworkerset.sigs.k8s.io/group-index":"999999999","leaderworkerset.sigs.k8s.io/worker-index":"0"}}}`, int32(4), uint8(0))
	f.Add(`{"metadata":{"name":"vllm-1","deletionTimestamp":"2026-11-20T12:00:00Z","annotations":{"leaderworkerset.sigs.k8s.io/size":"-1"}},
		"status":{"phase":"Failed","reason":"a","message":"b"}}`, int32(1_000_000), uint8(1))
	f.Add(`{"metadata":{"labels":{"lockstep.dev/serving":"true"}},"status":{"conditions":[{"type":"Ready","status":"True"}],"phase":"Running",
		"containerStatuses":[{"state":{"waiting":{"reason":"x"}}}]}}`, int32(2), uint8(7))
	f.Fuzz(func(t *testing.T, raw string, replicas int32, how uint8) {
		pod := lwstest.Pod("vllm-1")
		if replicas < 0 || json.Unmarshal([]byte(raw), pod) != nil {
			return
		}
		pod.Namespace = lwstest.VLLM.Namespace
		metav1.SetMetaDataLabel(&pod.ObjectMeta, lws.SetNameLabelKey, lwstest.VLLM.Name)
		style := pb.Style_STYLE_CANARY
		if how%2 == 1 {
			style = pb.Style_STYLE_PARTITION
		}
		b := newFixture(t, largeWorkload(t, replicas, style, fuzzedPhases[int(how/2)%len(fuzzedPhases)]))
		b.showPod(lwstest.Pod("vllm-0"))
		b.showPod(pod)
		b.lookAtHostile(t)
		for _, obj := range b.engine.Observer.Caches.Pods.GetIndexer().List() {
			// Names and labels are limited by the API server.
			if kept, _ := json.Marshal(obj); len(kept) > 2000+len(pod.Name)+len(pod.UID)+len(pod.ResourceVersion)+2*len(labelsOf(pod)) {
				t.Errorf("%d bytes are kept of a pod: %s", len(kept), kept)
			}
		}
	})
}

func labelsOf(pod *corev1.Pod) string {
	raw, _ := json.Marshal(pod.Labels)
	return string(raw)
}

// FuzzLeaderWorkerSet: whatever a LeaderWorkerSet contains, its release record included, a look at it does not panic, decides within the
// invariants, and costs little.
func FuzzLeaderWorkerSet(f *testing.F) {
	f.Add(`{"spec":{"replicas":2147483647,"leaderWorkerTemplate":{"size":2147483647}}}`, uint8(0))
	f.Add(`{"metadata":{"annotations":{"lockstep.dev/wanted-partition":"-1"},"labels":{"lockstep.dev/stable":"vllm","lockstep.dev/role":"canary"}}}`, uint8(1))
	f.Add(`{"spec":{"rolloutStrategy":{"rollingUpdateConfiguration":{"partition":-5,"maxUnavailable":"99999999999999%","maxSurge":-1}}}}`, uint8(2))
	f.Add(`{"metadata":{"annotations":{"lockstep.dev/release":"{}","lockstep.dev/target":"{\"groups\":\"2147483647\"}"},"finalizers":["lockstep.dev/release"]}}`, uint8(3))
	f.Fuzz(func(t *testing.T, raw string, how uint8) {
		w := lwstest.StableWorkload()
		if how%4 > 0 {
			w = largeWorkload(t, 4, []pb.Style{0, pb.Style_STYLE_CANARY, pb.Style_STYLE_PARTITION, pb.Style_STYLE_BLUE_GREEN}[how%4],
				fuzzedPhases[int(how/4)%len(fuzzedPhases)])
		}
		if json.Unmarshal([]byte(raw), w) != nil {
			return
		}
		w.Name, w.Namespace = lwstest.VLLM.Name, lwstest.VLLM.Namespace
		if n := w.Spec.Replicas; n != nil && *n < 0 {
			return // the API server refuses it
		}
		if n := w.Spec.LeaderWorkerTemplate.Size; n != nil && *n < 1 {
			return
		}
		if c := w.Spec.RolloutStrategy.RollingUpdateConfiguration; c != nil {
			value, err := (&record.Record{Version: 1, Saved: *c}).Encode()
			if _, bad := record.DecodeRecord(value); err != nil || bad != nil {
				return // LWS's webhook refuses it
			}
		}
		observe.StripWorkload(w)
		b := newFixture(t, w)
		b.showPod(lwstest.Pod("vllm-0"))
		b.showPod(lwstest.Pod("vllm-1"))
		b.lookAtHostile(t)
	})
}

// lookAtHostile checks a look at default/vllm, and an answer about it.
func (b *fixture) lookAtHostile(t *testing.T) {
	t.Helper()
	var s *observe.Snapshot
	var d plan.Decision
	var err error
	n := allocated(func() { s, d, err = b.engine.Look(lwstest.VLLM) })
	assert.LessOrEqual(t, n, uint64(maxFuzzed), "a look allocates %d kB", n>>10)
	if err != nil {
		r := drivererr.Reason(err)
		assert.False(t, r == pb.ErrorReason_ERROR_REASON_UNSPECIFIED || r == pb.ErrorReason_ERROR_REASON_INTERNAL, "a look fails: %v", err)
		return
	}
	assert.NotEqual(t, plan.ReasonInvariantViolation, d.Reason, d.Message)
	assert.LessOrEqual(t, len(s.Stable.Groups), 3, "groups of 2 pods")
	if set, ok := d.Action.(plan.SetStable); ok {
		value, err := set.Record.Encode()
		require.NoError(t, err)
		_, err = record.DecodeRecord(value)
		assert.NoError(t, err, "a record is written that no driver reads: %v\n%s", err, value)
	}
	c, _, err := b.contextOf(lwstest.VLLM, "", true)
	assert.NoError(t, err)
	assert.LessOrEqual(t, len(c.GetGroups()), maxGroupRows, "rows")
}
