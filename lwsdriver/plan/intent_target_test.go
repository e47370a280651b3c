// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// midRelease is a look at a release whose canary was scaled for 25% of eight groups.
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

// write is the one that a target leads to, nil if there is none.
func write(t *testing.T, o Observation, groups string) Action {
	t.Helper()
	d, err := Decide(o, SetTarget{ReleaseID: "r1", Groups: groups})
	if err != nil {
		t.Fatal(err)
	}
	return d.Action
}

// The same request again writes nothing, whatever the first one wrote.
func TestUpgradeOnce(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*Observation)
		scales       bool
	}{
		{"canary", "the target goes where it takes effect", func(*Observation) {}, true},
		{"not recorded", "LWS has not got to an edited template", func(o *Observation) { o.Stable.Revision = "" }, false},
		{"new template", "the release is about to start over", func(o *Observation) { o.Stable.Revision = "newer" }, false},
		{"canary going", "the next one gets it", func(o *Observation) { o.Added[0].Deleting = true }, false},
		{"no canary", "it is yet to be made", func(o *Observation) { o.Added = nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := midRelease()
			tt.change(&o)
			for i, groups := range []string{"50%", "50%", "25%", "75%", "75%"} {
				o.Now = noon.Add(time.Duration(i+1) * time.Second)
				action := write(t, o, groups)
				if again := i != 0 && i != 3; again != (action == nil) {
					t.Fatalf("%s: request %d for %s writes %v", tt.reason, i, groups, action)
				}
				switch a := action.(type) {
				case ScaleCanary:
					if !tt.scales {
						t.Errorf("%s: %v", tt.reason, a)
					}
					o.Added[0].Target, o.Added[0].Replicas = a.Target, a.Replicas
				case SetStable:
					if tt.scales {
						t.Errorf("%s: %v", tt.reason, a)
					}
					o.Record = &a.Record
				}
			}
		})
	}
}

// A target that was recorded while LWS had not got to the template takes effect once it has, without being requested again.
func TestRecordedTargetTakesEffect(t *testing.T) {
	o := midRelease()
	o.Policy.Style, o.Policy.ProgressDeadline = pb.Style_STYLE_CANARY, time.Hour
	o.Record.Release.Target = &record.Target{Groups: "50%", At: noon.Add(time.Second)}
	if a := write(t, o, "50%"); a != nil {
		t.Errorf("it is written again: %v", a)
	}
	d, err := Decide(o, nil)
	if scale, ok := d.Action.(ScaleCanary); err != nil || !ok || scale.Replicas != 4 {
		t.Errorf("writes %v, %v; want 4 groups", d.Action, err)
	}
}
