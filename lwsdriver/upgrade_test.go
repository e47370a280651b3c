// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// midRelease is a look at a release whose canary was scaled for 25% of eight groups.
func midRelease(t *testing.T) *seen {
	t.Helper()
	stable := inPhase(t, release.Progressing)
	s := newBed(t, stable).look()
	s.Stable.Replicas, s.Stable.Revision = 8, "new"
	s.Added = []plan.Workload{{
		Name: "vllm-new", Replicas: 2, Revision: "new", Carries: "new", Held: true,
		Target: &release.Target{Groups: "25%", At: noon},
	}}
	return s
}

func wants(groups string) *pb.UpgradeBatchRequest {
	return &pb.UpgradeBatchRequest{ReleaseId: "r1", Target: &pb.UpgradeBatchRequest_Groups{Groups: groups}}
}

// The same request again writes nothing, whatever the first one wrote.
func TestUpgradeOnce(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		change       func(*seen)
		scales       bool
	}{
		{"canary", "the target goes where it takes effect", func(*seen) {}, true},
		{"not recorded", "LWS has not got to an edited template", func(s *seen) { s.Stable.Revision = "" }, false},
		{"new template", "the release is about to start over", func(s *seen) { s.Stable.Revision = "newer" }, false},
		{"canary going", "the next one gets it", func(s *seen) { s.Added[0].Deleting = true }, false},
		{"no canary", "it is yet to be made", func(s *seen) { s.Added = nil }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := midRelease(t)
			tt.change(s)
			for i, groups := range []string{"50%", "50%", "25%", "75%", "75%"} {
				s.Now = noon.Add(time.Duration(i+1) * time.Second)
				action, err := upgrade(s, wants(groups))
				if err != nil {
					t.Fatal(err)
				}
				if again := i != 0 && i != 3; again != (action == nil) {
					t.Fatalf("%s: request %d for %s writes %v", tt.reason, i, groups, action)
				}
				switch a := action.(type) {
				case plan.ScaleCanary:
					if !tt.scales {
						t.Errorf("%s: %v", tt.reason, a)
					}
					s.Added[0].Target, s.Added[0].Replicas = a.Target, a.Replicas
				case plan.SetStable:
					if tt.scales {
						t.Errorf("%s: %v", tt.reason, a)
					}
					s.Record = &a.Record
				}
			}
		})
	}
}

// A wish that was only recorded while LWS had not got to the template does not pass for done once it can be.
func TestRecordedWishIsNotTheCanarys(t *testing.T) {
	s := midRelease(t)
	s.Record.Release.Target = &release.Target{Groups: "50%", At: noon.Add(time.Second)}
	action, err := upgrade(s, wants("50%"))
	if scale, ok := action.(plan.ScaleCanary); err != nil || !ok || scale.Replicas != 4 {
		t.Errorf("writes %v, %v; want 4 groups", action, err)
	}
}
