// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// memberPod is a pod of default/vllm that was created at noon and became ready so much later; never if it is zero.
func memberPod(group, worker int, ready time.Duration) *corev1.Pod {
	name := fmt.Sprintf("vllm-%d", group)
	if worker > 0 {
		name += fmt.Sprintf("-%d", worker)
	}
	return lwstest.Pod(name, func(p *corev1.Pod) {
		p.CreationTimestamp, p.Labels[lws.GroupIndexLabelKey] = metav1.NewTime(lwstest.Noon), fmt.Sprint(group)
		p.Status.Conditions[1].LastTransitionTime = metav1.NewTime(lwstest.Noon.Add(ready))
		if ready == 0 {
			lwstest.Unready(p)
		}
	})
}

// Start-up is that of whole groups, their slowest pod, and what one group waited for does not speak for all.
func TestStartupMeasured(t *testing.T) {
	b := newFixture(t, lwstest.InPhase(t, record.Promoted))
	took, n := b.engine.Observer.Caches.Groups.Startup(lwstest.VLLM, 4)
	assert.True(t, took == 0 && n == 0, "%s of %d groups, and there is none", took, n)
	for group, ready := range [][2]time.Duration{{time.Minute, 90 * time.Second}, {time.Minute, time.Minute}, {10 * time.Minute, time.Hour}, {time.Minute, 0}} {
		b.showPod(memberPod(group, 0, ready[0]))
		b.showPod(memberPod(group, 1, ready[1]))
	}
	took, n = b.engine.Observer.Caches.Groups.Startup(lwstest.VLLM, 4)
	assert.True(t, took == 90*time.Second && n == 3, "%s of %d groups, want 1m30s, the median of the 3 that are whole", took, n)
	s := b.look()
	in, warnings := b.forecastInput(s, &pb.PlanRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1")})
	if in.Startup != 90*time.Second || in.Replicas != 4 || in.Size() != 2 {
		t.Errorf("the forecast assumes %s for %d groups of %d", in.Startup, in.Replicas, in.Size())
	}
	assert.Equal(t, "StableTemplateUnknown", codesOf(warnings), "warnings: LWS's revision can't be read")
	given := &pb.PlanRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1"), Startup: durationpb.New(time.Minute)}
	in, _ = b.forecastInput(s, given)
	assert.Equal(t, time.Minute, in.Startup, "start-up %s, and it was given", in.Startup)
}

// What Initialize refuses blocks, what it warns of is warned of, and what says nothing about the release is an error.
func TestObstacles(t *testing.T) {
	for _, tt := range []struct {
		name, reason     string
		policy           *pb.ReleasePolicy
		quota            bool
		change           func(*observe.Snapshot)
		blocks, warnings string
	}{
		{name: "no room", reason: "a second set is refused", policy: blueGreen(false), quota: true, blocks: "QuotaExceeded", warnings: "RequestsNotSwitched"},
		{
			name: "in flight", reason: "another release", policy: inBatches(pb.Style_STYLE_PARTITION, "1"),
			change: func(s *observe.Snapshot) {
				s.Record = &record.Record{Release: &record.Release{ID: "r1", Phase: record.Progressing}}
			},
			blocks: "ReleaseInProgress",
		},
		{
			name: "mixed", reason: "and more than one obstacle", policy: inBatches(pb.Style_STYLE_PARTITION, "1"),
			change: func(s *observe.Snapshot) {
				s.Stable.Groups = append(s.Stable.Groups, s.Stable.Groups[0])
				s.Stable.Groups[1].Revision, s.Identity.UnnumberedGroup = "older", "x7f"
			},
			blocks: "UnsupportedGroupIdentity MixedRevisions",
		},
		{
			name: "nothing", reason: "costs are said although nothing waits", policy: inBatches(pb.Style_STYLE_CANARY, "100%"),
			change: func(s *observe.Snapshot) { s.Stable.Revision = "old" }, warnings: "ExtraCapacity",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var objects []runtime.Object
			if tt.quota {
				objects = append(objects, gpuQuota("100", "64"))
			}
			b, s := aboutToRelease(t, objects...)
			s.Added, s.AddedObjects = nil, nil
			if tt.change != nil {
				tt.change(s)
			}
			_, blockers, warnings, err := b.obstacles(s, tt.policy, b.checkTraffic(t.Context(), s, tt.policy))
			require.NoError(t, err)
			if got := codesOf(blockers); got != tt.blocks {
				t.Errorf("%s: blocked by %q, want %q: %v", tt.reason, got, tt.blocks, textOf(blockers))
			}
			if got := codesOf(warnings); got != tt.warnings {
				t.Errorf("%s: warnings %q, want %q: %v", tt.reason, got, tt.warnings, textOf(warnings))
			}
		})
	}
}

// A caller that has gone once it had its turn costs no forecast.
func TestPlanOfGoneCaller(t *testing.T) {
	leader := lwstest.Pod("vllm-0", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(lwstest.Noon) })
	b := newFixtureOn(t, fake.NewClientset(leader), lwstest.NoRoutes(), lwstest.Unrecorded())
	b.run()
	b.eventually("the group is observed", func() bool { return b.Synced() && len(b.look().Stable.Groups) > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	ctx = access.WithTurn(ctx, func(context.Context) bool { cancel(); return true })
	r, err := b.Plan(ctx, &pb.PlanRequest{Workload: vllmRef, Policy: inBatches(pb.Style_STYLE_CANARY, "1")})
	assert.Equal(t, codes.Canceled, status.Code(err), "%v, error %v", r, err)
}

func TestObstaclesUnknown(t *testing.T) {
	b, s := aboutToReleaseWithout(t, "resourcequotas", errors.New("boom"))
	_, _, _, err := b.obstacles(s, blueGreen(false), nil)
	assert.Equal(t, codes.Internal, status.Code(err), "a quota that can't be read: %v", err)
}

func TestCheckPlan(t *testing.T) {
	for name, tt := range map[string]struct {
		request *pb.PlanRequest
		want    pb.ErrorReason
	}{
		"policy":            {&pb.PlanRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1")}, 0},
		"no policy":         {&pb.PlanRequest{}, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		"negative start-up": {&pb.PlanRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1"), Startup: durationpb.New(-time.Second)}, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		"adopted": {&pb.PlanRequest{Policy: &pb.ReleasePolicy{
			Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"1"}, BlueGreen: &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT},
		}}, 0},
		"no promotion of that number": {&pb.PlanRequest{Policy: &pb.ReleasePolicy{
			Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"1"}, BlueGreen: &pb.BlueGreenPolicy{Promotion: 9},
		}}, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST},
	} {
		err := checkPlan(tt.request, record.Limits{})
		assert.Equal(t, tt.want, drivererr.Reason(err), "%s: %v", name, err)
	}
}

// A plan of a DisaggregatedSet is bounded by the groups of all its roles together, and by its children.
func TestForecastOfRolesIsBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		roles, replicas, slices int
		refused                 bool
	}{{2, 250, 1, false}, {2, 251, 1, true}, {10, 0, 50, false}, {10, 0, 51, true}} {
		s := &observe.Snapshot{Observation: plan.Observation{Slices: tt.slices, Roles: make([]plan.Role, tt.roles)}}
		for i := range s.Roles {
			s.Roles[i].Replicas = tt.replicas
		}
		err := checkForecast(s)
		assert.Equal(t, tt.refused, err != nil, "%+v: %v", tt, err)
	}
}
