// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FuzzQuantityOf: a quantity reads as it was written, and is within its bounds for any number of groups.
func FuzzQuantityOf(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string, total int32) {
		q, err := ParseQuantity(s)
		if err != nil {
			assert.Equal(t, Quantity{}, q, "ParseQuantity(%q) = %v beside an error", s, q)
			return
		}
		again, err := ParseQuantity(q.String())
		assert.True(t, err == nil && again == q, "ParseQuantity(%q) = %v, which reads as %v, %v", s, q, again, err)
		most := max(0, int(total))
		up, down := q.Up(int(total)), q.Down(int(total))
		require.True(t, down >= 0 && down <= up && up <= most && up-down <= 1, "%q of %d: up %d, down %d", s, total, up, down)
		more := q.Up(int(total) + 1)
		require.GreaterOrEqual(t, more, up, "%q of %d is %d, of one more %d", s, total, up, more)
		switch {
		case q.percent && q.value == 100 && (up != most || down != most):
			t.Errorf("%q of %d: up %d, down %d", s, total, up, down)
		case q.percent && q.value > 0 && most > 0 && up == 0:
			t.Errorf("%q of %d is rounded to nothing", s, total)
		case !q.percent && up != min(q.value, most):
			t.Errorf("%q of %d: %d", s, total, up)
		}
		n := (Policy{FailureThreshold: q}).Threshold(most)
		assert.False(t, n < 0 || (most > 0 && n >= most), "of %d groups %d may be unready", most, n)
	})
}

// FuzzParsePolicy: a policy is refused with the fields that are wrong, or means the same after it was recorded.
func FuzzParsePolicy(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		message := &pb.ReleasePolicy{}
		if proto.Unmarshal(raw, message) != nil {
			return
		}
		before := proto.CloneOf(message)
		p, bad := ParsePolicy(message)
		assert.True(t, proto.Equal(before, message), "the policy was changed")
		for _, v := range bad {
			assert.True(t, strings.HasPrefix(v.Field, "policy") && v.Description != "", "violation %+v", v)
		}
		if len(bad) > 0 {
			return
		}
		checkPolicy(t, message, p)
		recorded, err := EncodePolicy(message)
		require.NoError(t, err, "a valid policy can't be recorded")
		back, err := (&Release{Policy: recorded}).PolicyMessage()
		require.NoError(t, err, "what was recorded can't be read: %v\n%s", err, recorded)
		message.ProtoReflect().SetUnknown(nil)
		again, bad := ParsePolicy(back)
		assert.True(t, len(bad) == 0 && len(again.Batches) == len(p.Batches) && again.ProgressDeadline == p.ProgressDeadline && again.MinReady == p.MinReady,
			"%v reads back as %v (%v)", message, back, bad)
	})
}

// checkPolicy checks the guarantees of ParsePolicy independently.
func checkPolicy(t *testing.T, m *pb.ReleasePolicy, p Policy) {
	t.Helper()
	assert.True(t, len(p.Batches) != 0 && len(p.Batches) == len(m.GetBatches()) && p.ProgressDeadline > 0 && p.MinReady >= 0,
		"%v is accepted as %+v", m, p)
	for _, replicas := range []int{0, 1, 7, 100} {
		last := 0
		for _, q := range p.Batches {
			now := q.Up(replicas)
			assert.True(t, now >= last && now <= replicas, "batches of %v: %d after %d, of %d", m, now, last, replicas)
			last = now
		}
	}
	for _, keys := range []map[string]string{p.LeaderLabels, p.LeaderAnnotations} {
		for k := range maps.Keys(keys) {
			assert.False(t, hasAnyPrefix(k, reserved), "%v sets %s", m, k)
		}
	}
	if tr := p.Traffic; tr != nil && (tr.StableService == "" || tr.CanaryService == "" || tr.CanaryService == tr.StableService || len(tr.Routes)+len(tr.Ingresses) == 0) {
		t.Errorf("%v splits nothing: %+v", m, tr)
	}
	assert.True(t, p.Drain.Period >= 0 && p.Drain.Timeout >= 0 && p.WarmUp.Timeout >= 0, "%v waits for %+v, %+v", m, p.Drain, p.WarmUp)
}

// FuzzWanted: the annotations of the admission policy are read as values that LWS accepts, or reported.
func FuzzWanted(f *testing.F) {
	f.Fuzz(func(t *testing.T, partition, maxUnavailable, maxSurge string) {
		saved := rolling(3, "25%", "1")
		got, err := Wanted(saved, map[string]string{WantedPartition: partition, WantedMaxUnavailable: maxUnavailable, WantedMaxSurge: maxSurge})
		if err != nil {
			return
		}
		assert.NoError(t, checkRolling(got), "%q, %q and %q are read as %+v", partition, maxUnavailable, maxSurge, got)
		r := Record{Saved: got}
		again, err := DecodeRecord(encoded(t, &r))
		assert.True(t, err == nil && SameRolling(again.Saved, got), "%+v is recorded as %+v, %v", got, again, err)
	})
}
