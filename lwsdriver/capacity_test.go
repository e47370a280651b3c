// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/lwstest"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// aboutToRelease is a driver that has read these objects, and a workload of 4 groups of 2 pods with 8 GPUs each, whose template is
// not the one that runs.
func aboutToRelease(t *testing.T, objects ...runtime.Object) (*fixture, *observe.Snapshot) {
	t.Helper()
	return aboutToReleaseOn(t, fake.NewClientset(objects...))
}

// aboutToReleaseWithout is aboutToRelease where a resource can't be read.
func aboutToReleaseWithout(t *testing.T, resource string, err error) (*fixture, *observe.Snapshot) {
	t.Helper()
	core := fake.NewClientset()
	fakes.React(&core.Fake, "list", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
	return aboutToReleaseOn(t, core)
}

func aboutToReleaseOn(t *testing.T, core *fake.Clientset) (*fixture, *observe.Snapshot) {
	t.Helper()
	b := newFixtureOn(t, core, lwstest.NoRoutes())
	b.engine.Observer.Nearby.Start()
	b.run()
	b.eventually("what is nearby has been read, or can't be", func() bool { return !b.engine.Observer.Nearby.Pending() })
	w := lwstest.StableWorkload()
	c := &w.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0]
	c.Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")}
	s := &observe.Snapshot{Observation: plan.Observation{Key: lwstest.VLLM}, StableObject: w}
	s.Stable = plan.Workload{Name: "vllm", Replicas: 4, Size: 2, Revision: "new", Rolling: lwstest.Rolling(0, "1", "0")}
	s.Stable.Groups, s.Stable.Recorded = []plan.Group{{Index: 0, Revision: "old"}}, []string{"new", "old"}
	return b, s
}

func gpuQuota(hard, used string) *corev1.ResourceQuota {
	list := func(q string) corev1.ResourceList {
		return corev1.ResourceList{"requests.nvidia.com/gpu": resource.MustParse(q)}
	}
	return &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "gpus"},
		Spec:       corev1.ResourceQuotaSpec{Hard: list(hard)},
		Status:     corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)},
	}
}

func blueGreen(force bool) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}, BlueGreen: &pb.BlueGreenPolicy{Force: force}}
}

func inBatches(style pb.Style, batches ...string) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: style, Batches: batches}
}

// codesOf are the codes of warnings.
func codesOf(warnings []*pb.Warning) string {
	var all []string
	for _, w := range warnings {
		all = append(all, w.GetCode())
	}
	return strings.Join(all, " ")
}

func textOf(warnings []*pb.Warning) error {
	var all []string
	for _, w := range warnings {
		all = append(all, w.GetMessage())
	}
	return errors.New(strings.Join(all, "\n"))
}

func TestPreview(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		policy       *pb.ReleasePolicy
		change       func(*observe.Snapshot)
		quotas       []runtime.Object
		warns        string
		says         []string
	}{
		{
			name: "canary", reason: "its largest batch: 2 of 4 groups", policy: inBatches(pb.Style_STYLE_CANARY, "25%", "50%"),
			warns: "ExtraCapacity", says: []string{"up to 2 groups (4 pods)", "4 groups of default/vllm", "nvidia.com/gpu 32"},
		},
		{
			name: "surge", reason: "LWS surges while the canary is there", policy: inBatches(pb.Style_STYLE_CANARY, "50%"),
			change: func(s *observe.Snapshot) { s.Stable.Rolling = lwstest.Rolling(0, "0", "25%") },
			warns:  "ExtraCapacity", says: []string{"up to 3 groups (6 pods)", "2 in its canary", "1 for its own maxSurge", "nvidia.com/gpu 48"},
		},
		{
			name: "saved surge", reason: "under hold the user's own is in the record", policy: inBatches(pb.Style_STYLE_CANARY, "1"),
			change: func(s *observe.Snapshot) {
				s.Stable.Rolling, s.Record = record.Hold(), &record.Record{Saved: lwstest.Rolling(0, "1", "2")}
			},
			warns: "ExtraCapacity", says: []string{"up to 3 groups"},
		},
		{name: "partition", reason: "nothing on top", policy: inBatches(pb.Style_STYLE_PARTITION, "25%", "100%"), warns: ""},
		{
			name: "nothing to release", reason: "the template runs already", policy: inBatches(pb.Style_STYLE_CANARY, "100%"),
			change: func(s *observe.Snapshot) { s.Stable.Revision = "old" }, warns: "",
		},
		{
			name: "canary beyond a quota", reason: "a warning only: it may be promoted from an earlier batch", policy: inBatches(pb.Style_STYLE_CANARY, "100%"),
			quotas: []runtime.Object{gpuQuota("100", "64")},
			warns:  "ExtraCapacity QuotaExceeded", says: []string{"ResourceQuota default/gpus", "requests.nvidia.com/gpu needs 64", "36 is left"},
		},
		{
			name: "one group", reason: "no small step", policy: inBatches(pb.Style_STYLE_CANARY, "100%"),
			change: func(s *observe.Snapshot) { s.Stable.Replicas = 1 }, warns: "FewReplicas ExtraCapacity", says: []string{"1 group", "beside it"},
		},
		{
			name: "one group in place", reason: "nothing serves meanwhile", policy: inBatches(pb.Style_STYLE_PARTITION, "100%"),
			change: func(s *observe.Snapshot) { s.Stable.Replicas = 1 }, warns: "FewReplicas", says: []string{"deleted to be recreated", "nothing serves", "style canary"},
		},
		{
			name: "no group", reason: "nothing to release", policy: blueGreen(false), quotas: []runtime.Object{gpuQuota("0", "0")},
			change: func(s *observe.Snapshot) { s.Stable.Replicas, s.Stable.Groups = 0, nil }, warns: "FewReplicas", says: []string{"no group"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, s := aboutToRelease(t, tt.quotas...)
			if tt.change != nil {
				tt.change(s)
			}
			_, got, err := d.preview(s, tt.policy)
			if err != nil || codesOf(got) != tt.warns {
				t.Fatalf("%s: warnings %q, %v, want %q", tt.reason, codesOf(got), err, tt.warns)
			}
			lwstest.ErrorContains(t, textOf(got), tt.says...)
		})
	}
}

// The template is compared with that of the groups, which LWS has recorded.
func TestPreviewComparesPriority(t *testing.T) {
	before := lwstest.StableWorkload()
	before.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.PriorityClassName = "serving"
	d, s := aboutToRelease(t, lwstest.Revision(t, before, "old"))
	d.eventually("the revision has been read", func() bool {
		_, err := d.engine.Observer.Caches.Template(s.StableObject, "old")
		return err == nil
	})
	for class, want := range map[string]bool{"serving": false, "urgent": true, "": false} {
		s.StableObject.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.PriorityClassName = class
		found, _, err := d.preview(s, inBatches(pb.Style_STYLE_CANARY, "50%"))
		require.NoError(t, err)
		assert.Equal(t, want, slices.Contains(rulesOf(found), "PriorityRaised"), "class %q: %v", class, found)
		found, _, err = d.preview(s, inBatches(pb.Style_STYLE_PARTITION, "50%"))
		require.NoError(t, err)
		assert.NotContains(t, rulesOf(found), "PriorityRaised", "in place")
	}
}

// A second set that no quota holds is refused, with what is needed to act.
func TestPreviewRefuses(t *testing.T) {
	d, s := aboutToRelease(t, gpuQuota("100", "64"))
	_, _, err := d.preview(s, blueGreen(false))
	require.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED && status.Code(err) == codes.FailedPrecondition,
		"error %v", err)
	assert.Equal(t, "ResourceQuota default/gpus", drivererr.Metadata(err)["object"], "object")
	lwstest.ErrorContains(t, err, "default/vllm", "ResourceQuota default/gpus", "requests.nvidia.com/gpu", "64", "36", "style partition", "style canary", "policy.blue_green.force")
}

// The second set of a DisaggregatedSet has every role in each of its slices: with one slice more it is refused.
func TestPreviewRefusesSlices(t *testing.T) {
	d, s := aboutToRelease(t, gpuQuota("100", "64"))
	spec := *s.StableObject.Spec.DeepCopy()
	spec.Replicas, spec.LeaderWorkerTemplate.Size = ptr.To[int32](1), ptr.To[int32](1)
	s.Set = &observe.Set{ObjectMeta: s.StableObject.ObjectMeta}
	for _, name := range []string{"prefill", "decode"} {
		s.Roles = append(s.Roles, plan.Role{Name: name, Replicas: 1, Size: 1})
		role := disaggregated.DisaggregatedRoleSpec{Name: name}
		role.Spec = spec
		s.Set.Specs = append(s.Set.Specs, role)
	}
	for _, tt := range []struct {
		slices  int
		refuses []string
	}{
		{2, nil},
		{3, []string{"3 groups of prefill and 3 groups of decode (6 pods)", "requests.nvidia.com/gpu needs 48", "36 is left"}},
	} {
		s.Slices = tt.slices
		_, _, err := d.preview(s, blueGreen(false))
		if (err != nil) != (tt.refuses != nil) {
			t.Errorf("%d slices: %v", tt.slices, err)
			continue
		}
		if err != nil {
			lwstest.ErrorContains(t, err, tt.refuses...)
		}
	}
}

// A driver that may not read quotas, or can't at the moment, releases in every style but the one that must know.
func TestPreviewWithoutQuotas(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want pb.ErrorReason
	}{
		{"forbidden", apierrors.NewForbidden(schema.GroupResource{Resource: "resourcequotas"}, "",
			errors.New(`User "x" cannot list resource "resourcequotas"`)), pb.ErrorReason_ERROR_REASON_FORBIDDEN},
		{"unavailable", apierrors.NewServiceUnavailable("etcd"), pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d, s := aboutToReleaseWithout(t, "resourcequotas", tt.err)
			if _, _, err := d.preview(s, blueGreen(false)); drivererr.Reason(err) != tt.want {
				t.Errorf("blue-green: %v, want %v", err, tt.want)
			} else {
				lwstest.ErrorContains(t, err, "ResourceQuotas of default", "policy.blue_green.force")
			}
			for _, p := range []*pb.ReleasePolicy{blueGreen(true), inBatches(pb.Style_STYLE_CANARY, "1")} {
				if _, got, err := d.preview(s, p); err != nil || codesOf(got) != "ExtraCapacity QuotaUnknown" {
					t.Errorf("%s: %q, %v", p.GetStyle(), codesOf(got), err)
				}
			}
		})
	}
}

func TestPreviewWithoutBudgets(t *testing.T) {
	d, s := aboutToReleaseWithout(t, "poddisruptionbudgets", apierrors.NewForbidden(schema.GroupResource{Resource: "poddisruptionbudgets"}, "", errors.New("no")))
	if _, got, err := d.preview(s, inBatches(pb.Style_STYLE_PARTITION, "1")); err != nil || codesOf(got) != "BudgetsUnknown" {
		t.Errorf("%q, %v", codesOf(got), err)
	}
}

// A budget too large to keep is named, whatever the others say.
func TestPreviewWithLargeBudget(t *testing.T) {
	selects := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: "a", Operator: metav1.LabelSelectorOpIn, Values: []string{strings.Repeat("x", 20<<10)},
	}}}
	d, s := aboutToRelease(t, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "wide"}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: selects},
	})
	_, got, err := d.preview(s, inBatches(pb.Style_STYLE_PARTITION, "1"))
	assert.True(t, err == nil && codesOf(got) == "BudgetsUnknown" && strings.Contains(got[0].GetMessage(), "PodDisruptionBudget wide is larger than 16 KiB"),
		"%v, %v", got, err)
}
