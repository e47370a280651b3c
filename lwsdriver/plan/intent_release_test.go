// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// midRelease observes a release whose canary was scaled for 25% of eight groups.
func midRelease() Observation {
	return Observation{
		Now: noon, Stable: Workload{Name: "vllm", Replicas: 8, Size: 2, Revision: "new", Rolling: record.Hold()},
		Record: &record.Record{Release: &record.Release{
			ID: "r1", Phase: record.Progressing, StableRevision: "old", UpdateRevision: "new",
		}},
		Added: []Workload{{
			Name: "vllm-new", Replicas: 2, Revision: "new", Carries: "new", HasFinalizer: true,
			Target: &record.Target{Groups: "25%", At: noon},
		}},
	}
}

// write returns the write for a target, or nil.
func write(t *testing.T, o Observation, groups string) Action {
	t.Helper()
	d := must(Decide(o, SetTarget{ReleaseID: "r1", Groups: groups}))
	return d.Action
}

// TestUpgradeOnce checks that a repeated request writes nothing.
func TestUpgradeOnce(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*Observation)
		scales       bool
	}{
		{"canary", "the target is written where it takes effect", func(*Observation) {}, true},
		{"not recorded", "LWS has not recorded an edited template", func(o *Observation) { o.Stable.Revision = "" }, false},
		{"new template", "the release is about to start over", func(o *Observation) { o.Stable.Revision = "newer" }, false},
		{"canary being deleted", "the next canary gets it", func(o *Observation) { o.Added[0].Deleting = true }, false},
		{"orphaned canary", "it is deleted, and the next canary gets it", func(o *Observation) { o.Added[0].Orphaned = true }, false},
		{"no canary", "it is not created yet", func(o *Observation) { o.Added = nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := midRelease()
			tt.change(&o)
			for i, groups := range []string{"50%", "50%", "25%", "75%", "75%"} {
				o.Now = noon.Add(time.Duration(i+1) * time.Second)
				action := write(t, o, groups)
				require.Equal(t, action == nil, i != 0 && i != 3, "%s: request %d for %s writes %v", tt.reason, i, groups, action)
				switch a := action.(type) {
				case ScaleCanary:
					assert.True(t, tt.scales, "%s: %v", tt.reason, a)
					o.Added[0].Target, o.Added[0].Replicas = a.Target, a.Replicas
				case SetStable:
					assert.False(t, tt.scales, "%s: %v", tt.reason, a)
					o.Record = &a.Record
				}
			}
		})
	}
}

// TestRecordedTargetTakesEffect checks that a target that was recorded before LWS recorded the template takes effect
// afterwards, without being requested again.
func TestRecordedTargetTakesEffect(t *testing.T) {
	o := midRelease()
	o.Policy.Style, o.Policy.ProgressDeadline = pb.Style_STYLE_CANARY, time.Hour
	o.Record.Release.Target = &record.Target{Groups: "50%", At: noon.Add(time.Second)}
	a := write(t, o, "50%")
	assert.True(t, a == nil, "it is written again: %v", a)
	d, err := Decide(o, nil)
	scale, ok := d.Action.(ScaleCanary)
	assert.True(t, err == nil && ok && scale.Replicas == 4, "writes %v, %v; want 4 groups", d.Action, err)
}

// TestTargetOfSlowClock checks that a target counts although the clock of the driver that wrote the last one is ahead.
func TestTargetOfSlowClock(t *testing.T) {
	o := midRelease()
	o.Added[0].Deleting, o.Added[0].Target.At = true, noon.Add(time.Minute)
	set, ok := write(t, o, "50%").(SetStable)
	require.True(t, ok, "the target is not recorded")
	if o.Record = &set.Record; o.Target().Groups != "50%" {
		t.Errorf("the target is %+v", o.Target())
	}
}

func TestFinalizeChecksRevision(t *testing.T) {
	t.Parallel()
	promote := func(revision string) Intent { return Promote{ReleaseID: "r1", Revision: revision} }
	rollback := func(string) Intent { return RollBack{ReleaseID: "r1"} }
	const (
		changed = pb.ErrorReason_ERROR_REASON_REVISION_CHANGED
		ended   = pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED
		none    = pb.ErrorReason_ERROR_REASON_UNSPECIFIED
	)
	for _, test := range []struct {
		name, reason               string
		intent                     func(revision string) Intent
		phase                      record.Phase
		update, template, revision string
		want                       pb.ErrorReason
		writes, adopts             bool
	}{
		{"same", "the revision that the host saw", promote, record.Progressing, "b", "b", "b", none, true, false},
		{"any", "a host without a revision accepts any", promote, record.Progressing, "b", "b", "", none, true, false},
		{"started over", "the release has another revision by now", promote, record.Progressing, "c", "c", "b", changed, false, false},
		{"about to start over", "the template is another already", promote, record.Progressing, "b", "c", "b", changed, false, false},
		{"about to release it", "the release does not have the revision yet", promote, record.Progressing, "b", "c", "c", changed, false, false},
		{"not recorded", "LWS has not recorded the new template", promote, record.Progressing, "b", "", "b", changed, false, false},
		{"again", "the same request again changes nothing", promote, record.Promoting, "b", "b", "b", none, false, false},
		{"again, changed", "the promotion is about to be cancelled", promote, record.Promoting, "b", "c", "b", changed, false, false},
		{"done", "a later template waits for the next release", promote, record.Promoted, "b", "c", "b", none, false, false},
		{"done with another", "another revision was promoted", promote, record.Promoted, "c", "c", "b", changed, false, false},
		{"rolled back", "the end was chosen", promote, record.CleaningUp, "c", "c", "b", ended, false, false},
		{"promotion", "it can be rolled back until it is over", rollback, record.Promoting, "b", "b", "", none, true, false},
		{"promotion, changed", "whatever the template", rollback, record.Promoting, "b", "c", "b", none, true, false},
		{"rolling back, again", "the same request again changes nothing", rollback, record.RollingBack, "b", "b", "", none, false, false},
		{"too late", "every group serves what was promoted", rollback, record.Promoted, "b", "b", "", ended, false, false},
		{"template changed", "the stable revision is the same", rollback, record.Progressing, "c", "c", "b", none, true, false},
		{"standby", "it is one write", rollback, record.Standby, "b", "b", "", none, true, true},
		{"standby, again", "as requested", promote, record.Standby, "b", "b", "b", none, false, true},
		{"handover", "it can't be rolled back", rollback, record.HandingOver, "b", "b", "", ended, false, true},
		{"handover, again", "the next template waits", promote, record.HandingOver, "b", "c", "b", none, false, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			o := Observation{Key: types.NamespacedName{Namespace: "ns", Name: "vllm"}}
			o.Record = &record.Record{Release: &record.Release{
				ID: "r1", Phase: test.phase, StableRevision: "a", UpdateRevision: test.update,
			}}
			o.Policy.Style, o.Policy.Adopt = pb.Style_STYLE_BLUE_GREEN, test.adopts
			o.Stable = Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: test.template, Rolling: record.Hold()}
			d, err := Decide(o, test.intent(test.revision))
			assert.False(t, drivererr.Reason(err) != test.want || err != nil && test.want == none,
				"%s: error is %v, want reason %v", test.reason, err, test.want)
			assert.Equal(t, test.writes, d.Action != nil, "%s: action is %v, want one: %t", test.reason, d.Action, test.writes)
		})
	}
}

// The groups of a workload that was deleted and created again are no evidence of what the new one ran.
func TestBeginWaitsForGroupsOfEarlierWorkload(t *testing.T) {
	for _, tt := range []struct {
		name, workload string
		want           pb.ErrorReason
	}{
		{"its own groups", "recorded=A,B", pb.ErrorReason_ERROR_REASON_UNSPECIFIED},
		{"an earlier workload's", "recorded=B", pb.ErrorReason_ERROR_REASON_NOT_SYNCED},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := observed(t, "workload vllm replicas=2 revision=B "+tt.workload+"\ngroups 0-1 revision=A terminating reason=Terminating lost=1s")
			o.Record = nil
			_, err := Decide(o, Begin{ReleaseID: "r1", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}})
			got := drivererr.Reason(err)
			assert.Equal(t, tt.want, got, "%v, not %v: %v", got, tt.want, err)
		})
	}
}

// What runs unreleased is released by a release of nothing: from then on it is the revision that the record knows.
func TestBeginReleasesWhatRuns(t *testing.T) {
	o := observed(t, "workload vllm replicas=2 revision=C hold\nrecord phase=Promoted stable=A update=B since=1h\ngroups 0-1 revision=C ready=1h")
	require.Equal(t, ReasonUnreleased, must(Decide(o, nil)).Reason)
	d := must(Decide(o, Begin{ReleaseID: "r-2", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1"}}}))
	begun := d.Action.(SetStable).Record
	o.Record = &begun
	assert.Equal(t, ReasonNothing, must(Decide(o, nil)).Reason)
}
