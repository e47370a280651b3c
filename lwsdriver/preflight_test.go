// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// surroundings break one rule of each source.
func surroundings() []runtime.Object {
	in := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "default", Name: name} }
	of := map[string]string{lws.SetNameLabelKey: "vllm"}
	return []runtime.Object{
		&corev1.Service{ObjectMeta: in("vllm"), Spec: corev1.ServiceSpec{Selector: of}},
		&policyv1.PodDisruptionBudget{ObjectMeta: in("vllm"), Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: of},
		}},
		gpuQuota("64", "64"),
		&corev1.PersistentVolumeClaim{ObjectMeta: in("weights"), Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	}
}

// needy is unrecorded with GPUs and a shared volume, about to surge.
func needy() *lws.LeaderWorkerSet {
	w := lwstest.Unrecorded()
	w.Spec.Replicas, w.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](4), ptr.To[int32](2)
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = &lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1), MaxSurge: intstr.FromInt32(1)}
	spec := &w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec
	spec.Containers[0].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": *ptr.To(gpuQuota("8", "0").Spec.Hard["requests.nvidia.com/gpu"])}
	spec.Volumes = []corev1.Volume{{Name: "weights", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "weights"},
	}}}
	return w
}

func rulesOf(findings []*pb.Finding) []string {
	var all []string
	for _, f := range findings {
		all = append(all, f.GetRule())
	}
	slices.Sort(all)
	return all
}

// aroundNeedy is a running driver with needy, what is around it, and the rights that refuse does not take.
func aroundNeedy(t *testing.T, refuse ...string) *fixture {
	t.Helper()
	core := fake.NewClientset(surroundings()...)
	for _, resource := range refuse {
		fakes.React(&core.Fake, "*", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no such right"))
		})
	}
	b := newFixtureOn(t, core, lwstest.NoRoutes(), needy())
	b.run()
	b.eventually("caches are filled", b.Synced)
	return b
}

// A call that computes much first waits for its caches and lists: a turn that it had meanwhile would keep other callers from theirs.
func TestTurnsAfterWaits(t *testing.T) {
	for name, call := range map[string]func(context.Context, *fixture) error{
		"Plan": func(ctx context.Context, b *fixture) error {
			_, err := b.Plan(ctx, &pb.PlanRequest{Workload: observe.RefOf(lwstest.VLLM), Policy: inBatches(pb.Style_STYLE_CANARY, "1")})
			if status.Code(err) == codes.Unavailable { // the workload has no groups
				err = nil
			}
			return err
		},
		"Preflight": func(ctx context.Context, b *fixture) error {
			_, err := b.Preflight(ctx, &pb.PreflightRequest{Workload: observe.RefOf(lwstest.VLLM)})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b, read := aroundNeedy(t), map[string]bool{}
			var mu sync.Mutex
			fakes.React(&b.Core.Fake, "list", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
				select { // a turn that is taken too early comes first
				case <-time.After(100 * time.Millisecond):
				case <-t.Context().Done():
				}
				mu.Lock()
				defer mu.Unlock()
				read[a.GetResource().Resource] = true
				return false, nil, nil
			})
			turns, refuse := 0, false
			ctx := access.WithTurn(t.Context(), func(context.Context) bool {
				mu.Lock()
				defer mu.Unlock()
				if turns++; !read["resourcequotas"] || name == "Preflight" && !read["nodes"] {
					t.Errorf("the turn begins while the call waits: read is %v", read)
				}
				return !refuse
			})
			err := call(ctx, b)
			assert.True(t, err == nil && turns == 1, "%d turns: %v", turns, err)
			refuse = true
			err = call(ctx, b)
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_RATE_LIMITED, drivererr.Reason(err), "without a turn: %v", err)
		})
	}
}

func TestPreflight(t *testing.T) {
	const everything = "BudgetBlocksEviction GitOpsTracked NodesLackCapacity PreStopMissing QuotaExceeded ReadinessProbeMissing ServiceSelectsWorkers VolumeReadWriteOnce"
	for _, tt := range []struct {
		name, reason string
		request      *pb.PreflightRequest
		refuse       []string
		rules        string
		unchecked    []string
	}{
		{
			"own update", "LWS surges, too", &pb.PreflightRequest{}, nil, everything,
			[]string{"the longest request [GracePeriodBelowLongestRequest]: how long it takes was not set"},
		},
		{
			"in place", "nothing comes on top, so nothing has to fit", &pb.PreflightRequest{Policy: inBatches(pb.Style_STYLE_PARTITION, "100%")}, nil,
			"BudgetBlocksEviction GitOpsTracked PreStopMissing ReadinessProbeMissing ServiceSelectsWorkers VolumeReadWriteOnce",
			[]string{"the longest request [GracePeriodBelowLongestRequest]: how long it takes was not set"},
		},
		{
			"without rights", "what can't be read is said, and not claimed to be well", &pb.PreflightRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1")},
			[]string{"nodes", "persistentvolumeclaims", "services", "resourcequotas", "poddisruptionbudgets"}, "GitOpsTracked PreStopMissing ReadinessProbeMissing",
			[]string{
				"PersistentVolumeClaims [VolumeReadWriteOnce]: get persistentvolumeclaim default/weights: persistentvolumeclaims is forbidden: no such right (config/preflight",
				"PodDisruptionBudgets [BudgetBlocksEviction BudgetCountsPods]: fill the cache of poddisruptionbudgets", "ResourceQuotas [QuotaExceeded]: fill the cache of resourcequotas",
				"Services [ServiceSelectsWorkers ServiceExcludesAdded]: fill the cache of services", "nodes [NodesLackCapacity]: list nodes: nodes is forbidden",
				"the longest request [GracePeriodBelowLongestRequest]: how long it takes was not set",
			},
		},
		{
			"pods refused", "nodes alone tell nothing", &pb.PreflightRequest{Policy: inBatches(pb.Style_STYLE_CANARY, "1"), Expectations: &pb.PreflightExpectations{
				LongestRequest: durationpb.New(time.Second),
			}, SkipNodes: true}, nil, strings.Replace(everything, "NodesLackCapacity ", "", 1),
			[]string{"nodes [NodesLackCapacity]: not requested"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := aroundNeedy(t, tt.refuse...)
			tt.request.Workload = vllmRef
			r, err := b.Preflight(t.Context(), tt.request)
			require.NoError(t, err)
			if got := strings.Join(rulesOf(r.GetFindings()), " "); got != tt.rules {
				t.Errorf("%s: found %s, want %s", tt.reason, got, tt.rules)
			}
			var got []string
			for _, u := range r.GetUnchecked() {
				got = append(got, fmt.Sprintf("%s %v: %s", u.GetSubject(), u.GetRules(), u.GetReason()))
			}
			assert.True(t, slices.EqualFunc(got, tt.unchecked, strings.HasPrefix),
				"%s: not looked at:\n%s\nwant\n%s", tt.reason, strings.Join(got, "\n"), strings.Join(tt.unchecked, "\n"))
			assert.Empty(t, b.Writes(), "it wrote")
		})
	}
}

// A spec may have any number of groups, and placing them on nodes would take minutes of a turn that other callers wait for.
func TestPreflightPlacesBoundedPods(t *testing.T) {
	w := needy()
	w.Spec.Replicas = ptr.To[int32](1_000_000)
	delete(w.Annotations, lws.ExclusiveKeyAnnotationKey)
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	huge := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": resource.MustParse("1G")}}}
	b := newFixtureOn(t, fake.NewClientset(huge), lwstest.NoRoutes(), w)
	b.run()
	b.eventually("caches are filled", b.Synced)
	r, err := b.Preflight(t.Context(), &pb.PreflightRequest{Workload: vllmRef, Policy: inBatches(pb.Style_STYLE_BLUE_GREEN, "100%")})
	assert.True(t, err == nil && slices.ContainsFunc(r.GetUnchecked(), func(u *pb.Unchecked) bool {
		return u.GetSubject() == "nodes" && strings.Contains(u.GetReason(), "2000002 pods are added")
	}), "%v, %v, %v", r.GetUnchecked(), r.GetFindings(), err)
}

// A rule with a name is an error if the release routes by header. If the routes can't be read, they are not checked.
func TestPreflightReadsRoutes(t *testing.T) {
	policy := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"50%"}, Traffic: lwstest.TrafficPolicy}
	named := newNamedRuleFixture(t)
	for byHeader, want := range map[bool]pb.Severity{false: pb.Severity_SEVERITY_INFO, true: pb.Severity_SEVERITY_ERROR} {
		r, err := named.Preflight(t.Context(), &pb.PreflightRequest{
			Workload: vllmRef, Policy: policy, Expectations: &pb.PreflightExpectations{HeaderRoutes: byHeader},
		})
		i := slices.IndexFunc(r.GetFindings(), func(f *pb.Finding) bool { return f.GetRule() == "RouteRuleNamed" })
		assert.True(t, err == nil && i >= 0 && r.GetFindings()[i].GetSeverity() == want && r.GetFindings()[i].GetField() == "spec.rules[0].name",
			"by header %t: want severity %s: %v, %v", byHeader, want, r.GetFindings(), err)
	}
	r, err := aroundNeedy(t).Preflight(t.Context(), &pb.PreflightRequest{Workload: vllmRef, Policy: policy})
	assert.True(t, err == nil && slices.ContainsFunc(r.GetUnchecked(), func(u *pb.Unchecked) bool {
		return u.GetSubject() == "routes" && slices.Equal(u.GetRules(), []string{"RouteRuleNamed"}) && strings.Contains(u.GetReason(), "not installed")
	}), "routes that can't be read: %v, %v", r.GetUnchecked(), err)
}

// A request that makes no sense is refused, with the field.
func TestPreflightRefuses(t *testing.T) {
	b := aroundNeedy(t)
	for field, request := range map[string]*pb.PreflightRequest{
		"policy.batches":                    {Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY}},
		"expectations.longest_request":      {Expectations: &pb.PreflightExpectations{LongestRequest: durationpb.New(-1)}},
		"expectations.endpoint_propagation": {Expectations: &pb.PreflightExpectations{EndpointPropagation: durationpb.New(-1)}},
	} {
		request.Workload = vllmRef
		_, err := b.Preflight(t.Context(), request)
		assert.Equal(t, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, drivererr.Reason(err), "%s: %v", field, err)
		lwstest.ErrorContains(t, err, field)
	}
}

// Plan and Initialize say what preflight finds nearby, nothing twice, and never list nodes for it.
func TestNearby(t *testing.T) {
	b := aroundNeedy(t)
	leader := lwstest.Pod("vllm-0", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(lwstest.Noon) })
	_, err := b.Core.CoreV1().Pods(leader.Namespace).Create(t.Context(), leader, metav1.CreateOptions{})
	require.NoError(t, err)
	b.eventually("the group is observed", func() bool { return len(b.look().Stable.Groups) > 0 })
	r, err := b.Plan(t.Context(), &pb.PlanRequest{Workload: vllmRef, Policy: inBatches(pb.Style_STYLE_CANARY, "1")})
	require.NoError(t, err)
	assert.Equal(t, "GitOpsTracked PreStopMissing ReadinessProbeMissing ServiceSelectsWorkers", strings.Join(rulesOf(r.GetFindings()), " "),
		"the plan finds")
	for _, a := range b.Core.Actions() {
		assert.False(t, a.Matches("list", "nodes"), "nodes were listed")
	}
}
