// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/openkruise/rollouts/api/v1beta1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/files"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// failing is a driver whose Initialize fails as told, or each call.
type failing struct {
	host.Driver

	err   error
	reads bool
}

func (f *failing) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	if _, begins := request.(*pb.InitializeRequest); (begins || f.reads) && f.err != nil {
		return nil, f.err
	}
	return f.Driver.Call(ctx, request)
}

// bench is a Reconciler on an API server in memory, with a driver of the contract over the wire. Its BatchRelease waits after the
// first of two batches; the workload runs v1 and is held.
type bench struct {
	*testing.T
	*Reconciler

	reporting *host.Reporting
	fake      *plugintest.FakeDriver
	failing   *failing
}

var key = client.ObjectKey{Namespace: "default", Name: "vllm"}

func newRelease() *v1beta1.BatchRelease {
	return &v1beta1.BatchRelease{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, UID: "0123", Generation: 1},
		Spec: v1beta1.BatchReleaseSpec{
			WorkloadRef: v1beta1.ObjectRef{APIVersion: "leaderworkerset.x-k8s.io/v1", Kind: "LeaderWorkerSet", Name: key.Name},
			ReleasePlan: v1beta1.ReleasePlan{BatchPartition: ptr.To[int32](0), Batches: []v1beta1.ReleaseBatch{
				{CanaryReplicas: intstr.FromString("50%")}, {CanaryReplicas: intstr.FromString("100%")},
			}},
		},
	}
}

func newBench(t *testing.T, change func(*v1beta1.BatchRelease), hooks interceptor.Funcs) *bench {
	t.Helper()
	r := newRelease()
	if change != nil {
		change(r)
	}
	scheme := runtime.NewScheme()
	require.NoError(t, v1beta1.AddToScheme(scheme))
	b := &bench{T: t, fake: plugintest.NewFakeDriver()}
	b.fake.SetWorkload(key.Namespace, key.Name, 4, "v1")
	b.failing = &failing{Driver: plugintest.Connect(t, b.fake, b.fake)}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(r).WithStatusSubresource(&v1beta1.BatchRelease{}).
		WithReturnManagedFields().WithInterceptorFuncs(hooks).Build()
	b.Reconciler = &Reconciler{
		Client: c, Driver: b.failing, Logger: slog.New(slog.DiscardHandler), Events: &events.FakeRecorder{},
	}
	b.reporting = &host.Reporting{Of: b.Reconciler, Logger: b.Logger}
	return b
}

func (b *bench) once() reconcile.Result {
	b.Helper()
	result, err := b.reporting.Reconcile(b.Context(), reconcile.Request{NamespacedName: key})
	require.NoError(b, err)
	return result
}

func (b *bench) get() *v1beta1.BatchRelease {
	b.Helper()
	out := &v1beta1.BatchRelease{}
	require.NoError(b, client.IgnoreNotFound(b.Client.Get(b.Context(), key, out)))
	return out
}

func (b *bench) change(f func(*v1beta1.BatchRelease)) {
	b.Helper()
	r := b.get()
	f(r)
	require.NoError(b, b.Client.Update(b.Context(), r))
}

func TestReleaseInOneGo(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, interceptor.Funcs{})
	result := b.once()
	assert.True(t, result.IsZero(), "it wants to be called again: %+v", result)
	r := b.get()
	assert.True(t, r.Status.Phase == v1beta1.RolloutPhasePreparing && slices.Contains(r.Finalizers, batchrelease.Finalizer),
		"%+v, finalizers %v", r.Status, r.Finalizers)
	b.fake.SetWorkload(key.Namespace, key.Name, 4, "v2")
	b.once()
	r = b.get()
	s := r.Status
	assert.True(t, s.CanaryStatus.CurrentBatchState == v1beta1.ReadyBatchState && s.CanaryStatus.UpdatedReadyReplicas == 2, s)
	version := r.ResourceVersion
	b.once()
	assert.Equal(t, version, b.get().ResourceVersion, "where nothing has changed, it writes")
	b.change(func(r *v1beta1.BatchRelease) { r.Spec.ReleasePlan.BatchPartition = nil })
	b.once()
	r = b.get()
	assert.Equal(t, v1beta1.RolloutPhaseCompleted, r.Status.Phase, r.Status)
	b.change(func(r *v1beta1.BatchRelease) {
		r.Spec.ReleasePlan.FinalizingPolicy = v1beta1.WaitResumeFinalizingPolicyType
	})
	b.once()
	require.NoError(t, b.Client.Delete(t.Context(), b.get()))
	if b.once(); b.get().Name != "" {
		t.Errorf("its finalizer is still there: %v", b.get().Finalizers)
	}
}

// The cache that reports the creation of a workload may be ahead of the driver's.
func TestMissingWorkloadIsLookedForAgain(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(r *v1beta1.BatchRelease) { r.Spec.WorkloadRef.Name = "other" }, interceptor.Funcs{})
	if result := b.once(); result.RequeueAfter == 0 || !strings.Contains(b.get().Status.Message, "does not exist") {
		t.Errorf("%+v, %+v", result, b.get().Status)
	}
}

func TestForeignKindsAreLeftAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(r *v1beta1.BatchRelease) { r.Spec.WorkloadRef.Kind = "RolloutTarget" }, interceptor.Funcs{})
	version := b.get().ResourceVersion
	if b.once(); b.get().ResourceVersion != version {
		t.Errorf("%+v", b.get())
	}
}

// A BatchRelease whose workload was one of ours is deleted, and one that only Kruise's manager has written is left to it.
func TestForeignKindsAreDeleted(t *testing.T) {
	t.Parallel()
	for manager, left := range map[string]int{"lockstep-batchrelease": 0, "kruise-rollout": 1} {
		b := newBench(t, func(r *v1beta1.BatchRelease) {
			r.Spec.WorkloadRef = v1beta1.ObjectRef{APIVersion: "apps/v1", Kind: "Deployment", Name: key.Name}
			r.Finalizers = []string{batchrelease.Finalizer}
			r.ManagedFields = []metav1.ManagedFieldsEntry{{
				Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate,
				APIVersion: v1beta1.GroupVersion.String(), FieldsType: "FieldsV1", FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:finalizers":{}}}`)},
			}}
		}, interceptor.Funcs{})
		require.NoError(t, b.Client.Delete(t.Context(), b.get()))
		b.once()
		got := len(b.get().Finalizers)
		assert.Equal(t, left, got, "written by %s: %d finalizers are left, want %d", manager, got, left)
	}
}

// Of a workload that the driver does not show, such as one with a wrong name or of another tenant, nothing has to end.
func TestUnreadableIsDeleted(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, interceptor.Funcs{})
	b.failing.err, b.failing.reads = drivererr.New(pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, "workload.name"), true
	b.once()
	assert.Equal(t, "workload.name", b.get().Status.Message)
	require.NoError(t, b.Client.Delete(t.Context(), b.get()))
	b.once()
	assert.Empty(t, b.get().Name, "it is kept")
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, reason string
		err          error
		says         string
	}{
		{"a person must act", "the condition says so", drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, "vllm belongs to KServe"), "ForeignOwner"},
		{"retryable", "it is retried, without a condition", drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "no answer"), ""},
		{"another host was faster", "it is reconciled again", drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "another"), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, nil, interceptor.Funcs{})
			b.once()
			b.fake.SetWorkload(key.Namespace, key.Name, 4, "v2")
			b.failing.err = test.err
			for range 2 {
				assert.NotZero(t, b.once().RequeueAfter, "%s: it is not tried again", test.reason)
			}
			c := b.get().Status.Conditions
			assert.False(t, test.says == "" && len(c) != 0 || test.says != "" && (len(c) != 1 || c[0].Reason != test.says), "%s: %+v", test.reason, c)
			b.failing.err = nil
			if b.once(); len(b.get().Status.Conditions) != 0 || b.get().Status.Phase != v1beta1.RolloutPhaseProgressing {
				t.Errorf("once that is over: %+v", b.get().Status)
			}
		})
	}
}

// No call is made for a status that could not be written.
func TestStatusComesFirst(t *testing.T) {
	t.Parallel()
	down := false
	away := errors.New("the API server is away")
	b := newBench(t, nil, interceptor.Funcs{SubResourceUpdate: func(
		ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption,
	) error {
		if down {
			return away
		}
		return c.SubResource(sub).Update(ctx, o, opts...)
	}})
	b.once()
	b.fake.SetWorkload(key.Namespace, key.Name, 4, "v2")
	b.once()
	down = true
	b.change(func(r *v1beta1.BatchRelease) { r.Spec.ReleasePlan.BatchPartition = ptr.To[int32](1) })
	_, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	assert.ErrorIs(t, err, away, "error")
	assert.Equal(t, "50%", b.fake.Context(key.Namespace, key.Name).GetTarget(), "the driver was asked for")
}

func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	hosttest.CampaignRequiresCaches(t, Run,
		hosttest.Kind{GroupVersionKind: v1beta1.GroupVersion.WithKind("BatchRelease"), Resource: "batchreleases"},
		hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"},
		hosttest.Kind{GroupVersionKind: host.DisaggregatedSet, Resource: "disaggregatedsets"},
		hosttest.Kind{GroupVersionKind: rival().GroupVersionKind(), Resource: "mutatingwebhookconfigurations"})
}

func TestRunRefuses(t *testing.T) {
	t.Parallel()
	const releases, workloads = "/apis/rollouts.kruise.io/v1beta1", "/apis/leaderworkerset.x-k8s.io/v1"
	const webhook = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/kruise-rollout-mutating-webhook-configuration"
	lists := map[string]string{
		releases:  `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"batchreleases","kind":"BatchRelease"}]}`,
		workloads: `{"kind":"APIResourceList","apiVersion":"v1","resources":[{"name":"leaderworkersets","kind":"LeaderWorkerSet"}]}`,
		webhook:   `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"name":"kruise-rollout-mutating-webhook-configuration"}}`,
	}
	// The command of the documentation.
	install := regexp.MustCompile("\nkubectl apply -f https://.*").FindString(string(files.Read(t, "../../../../docs/kruise-batchrelease.md")))
	for _, test := range []struct {
		name   string
		serves []string
		want   string
	}{
		{"no BatchRelease", []string{workloads}, "the CRD of BatchRelease is not installed: " + install[1:]},
		{"no LeaderWorkerSet", []string{releases}, "install LWS v0.9.0"},
		{"Kruise's manager", []string{releases, workloads, webhook}, "Kruise Rollouts' own manager is installed here"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			documents := map[string]string{}
			for _, path := range test.serves {
				documents[path] = lists[path]
			}
			hosttest.Refuses(t, Run, documents, test.want)
		})
	}
}

// What kept a completed BatchRelease from being followed is not said for longer than it lasts.
func TestReportIsTakenBackWhileFollowing(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil, interceptor.Funcs{})
	b.once()
	b.fake.SetWorkload(key.Namespace, key.Name, 4, "v2")
	b.once()
	b.fake.OnFinalize = func(_ pb.FinalizeIntent, c *pb.BatchContext) error {
		c.State, c.Intent = pb.State_STATE_PROMOTING, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
		return nil
	}
	b.change(func(r *v1beta1.BatchRelease) { r.Spec.ReleasePlan.BatchPartition = nil })
	b.once()
	require.False(t, batchrelease.Over(b.get()), "it is followed: %+v", b.get().Status)
	require.NoError(t, b.Report(t.Context(), key, "DriverUnavailable", "the driver does not answer"))
	require.Len(t, b.get().Status.Conditions, 2)
	b.once()
	c := b.get().Status.Conditions
	assert.True(t, len(c) == 1 && c[0].Type == "Following", "conditions %+v", c)
}
