// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/hosttest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// scripted is a driver of one workload that fails as told and notes what it is asked for.
type scripted struct {
	context *pb.BatchContext
	err     error
	calls   []string
}

var _ host.Driver = (*scripted)(nil)

func (s *scripted) Call(_ context.Context, request proto.Message) (*pb.BatchContext, error) {
	c := s.context
	if s.err != nil {
		c = &pb.BatchContext{} // a refused call changes nothing
	}
	switch r := request.(type) {
	case *pb.CalculateBatchContextRequest:
		return s.context, nil
	case *pb.AdoptRequest:
		s.calls = append(s.calls, "Adopt")
		c.State = pb.State_STATE_HOLDING
	case *pb.DisownRequest:
		s.calls = append(s.calls, "Disown")
		c.State = pb.State_STATE_UNMANAGED
	case *pb.InitializeRequest:
		s.calls = append(s.calls, "Initialize "+strings.Join(r.GetPolicy().GetBatches(), " "))
		c.State, c.ReleaseId, c.Owner, c.UpdateRevision = pb.State_STATE_HOLDING, r.GetReleaseId(), r.GetOwner(), c.GetTemplateRevision()
	case *pb.UpgradeBatchRequest:
		s.calls = append(s.calls, "UpgradeBatch "+r.GetGroups())
		c.State, c.Planned = pb.State_STATE_UPGRADING, int32(len(r.GetGroups()))
	case *pb.FinalizeRequest:
		s.calls = append(s.calls, r.GetIntent().String())
		c.Intent = r.GetIntent()
		switch {
		case c.GetState() == pb.State_STATE_FAILED: // It stays FAILED until the cause is resolved.
		case r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK:
			c.State = pb.State_STATE_ROLLING_BACK
		default:
			c.State = pb.State_STATE_PROMOTING
		}
	}
	return c, s.err
}

func (s *scripted) WatchWorkloads(
	context.Context, *pb.WatchWorkloadsRequest, ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	return func(func(*pb.WatchWorkloadsResponse, error) bool) {}
}

// bench is a Reconciler on an API server in memory, with the target of v, its workload and two controller revisions.
func bench(t *testing.T, v View, hooks interceptor.Funcs) (*Reconciler, *scripted) {
	t.Helper()
	objects := []client.Object{v.Target}
	workload := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "vllm"}}
	workload.SetGroupVersionKind(host.LeaderWorkerSet)
	objects = append(objects, workload)
	controller := true
	for revision, name := range map[string]string{"one": "vllm-1", "two": "vllm-2"} {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{labelName: "vllm", labelWorkerIndex: "0", labelRevision: revision},
			OwnerReferences: []metav1.OwnerReference{{Kind: "StatefulSet", Name: "vllm", Controller: &controller}},
		}}
		o.SetGroupVersionKind(revisionKind)
		objects = append(objects, o)
	}
	for kind, o := range map[string]*unstructured.Unstructured{"Rollout": v.Evidence.Rollout, "BatchRelease": v.Evidence.BatchRelease} {
		if o != nil {
			o.SetGroupVersionKind(kruiseKind(kind))
			o.SetNamespace("default")
			o.SetName("vllm")
			objects = append(objects, o)
		}
	}
	return benchOf(t, v.Context, hooks, objects...)
}

// benchOf is a Reconciler on an API server in memory with these objects, and a driver with this state of the workload.
func benchOf(t *testing.T, context *pb.BatchContext, hooks interceptor.Funcs, objects ...client.Object) (*Reconciler, *scripted) {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(scheme))
	require.NoError(t, metav1.AddMetaToScheme(scheme))
	for _, kind := range []string{"Rollout", "BatchRelease"} {
		scheme.AddKnownTypeWithName(kruiseKind(kind), &unstructured.Unstructured{})
		scheme.AddKnownTypeWithName(kruiseKind(kind+"List"), &unstructured.UnstructuredList{})
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&v1alpha1.RolloutTarget{}).
		WithIndex(&v1alpha1.RolloutTarget{}, host.ByWorkload, func(o client.Object) []string {
			return []string{o.(*v1alpha1.RolloutTarget).Spec.WorkloadRef.Name}
		}).WithInterceptorFuncs(hooks).Build()
	d := &scripted{context: context}
	return &Reconciler{Client: c, Reader: c, Driver: d, Logger: slog.New(slog.DiscardHandler), Events: &events.FakeRecorder{}}, d
}

func reconcileOnce(t *testing.T, r *Reconciler) (reconcile.Result, *v1alpha1.RolloutTarget) {
	t.Helper()
	key := client.ObjectKey{Namespace: "default", Name: "vllm"}
	result, err := (&host.Reporting{Of: r, Logger: r.Logger}).Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
	require.NoError(t, err)
	out := &v1alpha1.RolloutTarget{}
	require.NoError(t, client.IgnoreNotFound(r.Client.Get(t.Context(), key, out)))
	return result, out
}

func TestNewTargetIsBoundAtOnce(t *testing.T) {
	v := view(unheld, unbound)
	v.Target.Spec = v1alpha1.RolloutTargetSpec{WorkloadRef: v.Target.Spec.WorkloadRef}
	v.Target.Status = v1alpha1.RolloutTargetStatus{}
	r, d := bench(t, v, interceptor.Funcs{})
	_, out := reconcileOnce(t, r)
	if len(d.calls) != 1 || d.calls[0] != "Adopt" || !controllerutil.ContainsFinalizer(out, Finalizer) || out.Labels[labelWorkloadType] != "statefulset" {
		t.Errorf("calls %v, finalizers %v, labels %v", d.calls, out.Finalizers, out.Labels)
	}
	assert.True(t, out.Status.ObservedGeneration == out.Generation && out.Status.Replicas == 4 && out.Status.UpdateRevision == "vllm-1",
		"status %+v of generation %d", out.Status, out.Generation)
	version := out.ResourceVersion
	_, out = reconcileOnce(t, r)
	assert.True(t, out.ResourceVersion == version && len(d.calls) == 1, "the second look writes: calls %v", d.calls)
}

func TestBatchIsBegunInOneGo(t *testing.T) {
	r, d := bench(t, view(template("two"), partition(3), led, asks("vllm-2"), listens, controlled("fedcba98-76")), interceptor.Funcs{})
	reconcileOnce(t, r)
	assert.Equal(t, "Initialize 100%, UpgradeBatch 1", strings.Join(d.calls, ", "), "calls")
}

// controlled is a target that a BatchRelease of this uid has written its control info on.
func controlled(uid string) func(*View) {
	return func(v *View) {
		metav1.SetMetaDataAnnotation(&v.Target.ObjectMeta, annotationControl, `{"kind": "BatchRelease", "name": "vllm", "uid": "`+uid+`"}`)
	}
}

// refers is a Rollout of the target.
func refers(v *View) {
	ref := map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "RolloutTarget", "name": "vllm"}
	v.Evidence.Rollout.Object["spec"] = map[string]any{"workloadRef": ref}
}

// listens is a Rollout of the target that Kruise has observed.
func listens(v *View) {
	shows("vllm-1", "Completed", "")(v)
	phase("Healthy")(v)
	refers(v)
}

func TestEvidenceIsThatOfThisTarget(t *testing.T) {
	ends := shows("vllm-2", "Completed", "Completed")
	for _, test := range []struct {
		name, why string
		v         View
		want      string
	}{
		{"re-created BatchRelease", "its name is not enough", view(template("two"), partition(3), led, asks("vllm-2"), listens, controlled("other")), ""},
		{"no control info", "it may control another object", view(template("two"), partition(3), led, asks("vllm-2"), listens), ""},
		{"its Rollout", "its steps are complete", view(template("two"), releasing(pb.State_STATE_READY, 4), ends, refers), "FINALIZE_INTENT_PROMOTE"},
		{"another's Rollout", "it says nothing of this target", view(template("two"), releasing(pb.State_STATE_READY, 4), ends), ""},
		{"Rollout being deleted", "it ends without its steps", view(template("two"), releasing(pb.State_STATE_READY, 4), ends, refers, func(v *View) {
			v.Evidence.Rollout.SetFinalizers([]string{"rollouts.kruise.io/rollout"})
			v.Evidence.Rollout.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
		}), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, d := bench(t, test.v, interceptor.Funcs{})
			result, out := reconcileOnce(t, r)
			assert.Equal(t, test.want, strings.Join(d.calls, ", "), "%s: calls", test.why)
			// Kruise's objects are not watched, and what they lack may come: their status lags behind their spec.
			assert.Equal(t, test.want == "", result.RequeueAfter != 0, "%s: again after %s", test.why, result.RequeueAfter)
			c := out.Status.Conditions
			assert.False(t, test.want == "" && (len(c) != 1 || c[0].Reason != reasonNotRequested), "%s: conditions %v", test.why, c)
		})
	}
}

func TestEvidenceIsThatOfTheRolloutInProgress(t *testing.T) {
	v := view(template("two"), releasing(pb.State_STATE_READY, 4), shows("vllm-2", "Completed", "Completed"), refers)
	r, d := bench(t, v, interceptor.Funcs{})
	for _, name := range []string{"before", "younger"} { // in the order of a list
		other := v.Evidence.Rollout.DeepCopy()
		other.SetName(name)
		other.SetResourceVersion("")
		other.Object["status"] = map[string]any{}
		require.NoError(t, r.Client.Create(t.Context(), other))
	}
	target := &v1alpha1.RolloutTarget{}
	require.NoError(t, r.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "vllm"}, target))
	metav1.SetMetaDataAnnotation(&target.ObjectMeta, annotationProgressing, `{"rolloutName":"vllm"}`)
	require.NoError(t, r.Client.Update(t.Context(), target))
	reconcileOnce(t, r)
	assert.Equal(t, "FINALIZE_INTENT_PROMOTE", strings.Join(d.calls, ", "), "calls")
}

// A target that was applied again shows the template that the groups run first, and then the one that waits: Kruise's webhook ignores the
// first template of an object.
func TestNewTargetShowsWhatServesFirst(t *testing.T) {
	var shown []string
	v := view(edited("two"), listens, func(v *View) { v.Target.Spec.Template = nil })
	r, d := bench(t, v, interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
			shown = append(shown, templateOf(o.(*v1alpha1.RolloutTarget)))
			return err
		},
	})
	reconcileOnce(t, r)
	if got := strings.Join(shown, ", "); got != "one, two" || len(d.calls) != 0 {
		t.Errorf("it shows %s, calls %v", got, d.calls)
	}
}

func TestDeletedTargetEndsItsRelease(t *testing.T) {
	for _, test := range []struct {
		name, why string
		onDelete  v1alpha1.OnDeletion
		state     pb.State
		requested pb.FinalizeIntent
		want      string
	}{
		{"default", "it is the safe end", "", pb.State_STATE_READY, 0, "FINALIZE_INTENT_ROLLBACK"},
		{"rollback", "as the target says", v1alpha1.OnDeletionRollback, pb.State_STATE_READY, 0, "FINALIZE_INTENT_ROLLBACK"},
		{"promote", "as the target says", v1alpha1.OnDeletionPromote, pb.State_STATE_READY, 0, "FINALIZE_INTENT_PROMOTE"},
		{"failed", "one request is enough", "", pb.State_STATE_FAILED, 0, "FINALIZE_INTENT_ROLLBACK"},
		{
			"a rollback failed", "it is not promoted",
			v1alpha1.OnDeletionPromote, pb.State_STATE_FAILED, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK, "",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := view(template("two"), partition(3), releasing(test.state, 1))
			v.Target.Spec.OnDeletion, v.Context.Intent = test.onDelete, test.requested
			r, d := bench(t, v, interceptor.Funcs{})
			require.NoError(t, r.Client.Delete(t.Context(), v.Target.DeepCopy()))
			result, out := reconcileOnce(t, r)
			if got := strings.Join(d.calls, ", "); got != test.want || result.RequeueAfter != 0 {
				t.Errorf("%s: calls %s, again after %s, want one call of %s", test.why, got, result.RequeueAfter, test.want)
			}
			c := out.Status.Conditions
			assert.True(t, len(c) == 1 && c[0].Reason == "Deleting", "%s: conditions %v", test.why, c)
		})
	}
}

func TestDeletedTargetAwaitsItsPromotion(t *testing.T) {
	v := view()
	v.Context.State, v.Context.ReleaseId, v.Context.Owner = pb.State_STATE_PROMOTING, "kruise-1", ownerOf(v.Target)
	r, d := bench(t, v, interceptor.Funcs{})
	require.NoError(t, r.Client.Delete(t.Context(), v.Target.DeepCopy()))
	if _, out := reconcileOnce(t, r); out.Name == "" || len(d.calls) != 0 {
		t.Errorf("the release is being promoted: target %q, calls %v", out.Name, d.calls)
	}
	v.Context.State = pb.State_STATE_COMPLETED
	if _, out := reconcileOnce(t, r); out.Name != "" || strings.Join(d.calls, ", ") != "Disown" {
		t.Errorf("it is promoted: target %q, calls %v", out.Name, d.calls)
	}
}

func TestErrorsAreSaid(t *testing.T) {
	refused := drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, "vllm belongs to KServe")
	away := drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "no answer")
	for _, test := range []struct {
		name, why string
		err       error
		reason    string
	}{
		{"a person must act", "the condition says what about", refused, "ForeignOwner"},
		{"retryable", "it is retried, without a condition", away, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			r, d := bench(t, view(unheld), interceptor.Funcs{})
			d.err = test.err
			result, out := reconcileOnce(t, r)
			assert.NotZero(t, result.RequeueAfter, "%s: it is not tried again", test.why)
			if c := out.Status.Conditions; test.reason == "" && len(c) != 0 ||
				test.reason != "" && (len(c) != 1 || c[0].Reason != test.reason || !strings.Contains(c[0].Message, "KServe")) {
				t.Errorf("%s: conditions %v", test.why, c)
			}
		})
	}
}

func TestDriverAwayIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, d := bench(t, view(unheld), interceptor.Funcs{})
		reporting, key := &host.Reporting{Of: r, Logger: r.Logger}, client.ObjectKey{Namespace: "default", Name: "vllm"}
		reasonAfter := func(pause time.Duration) string {
			time.Sleep(pause) //nolint:forbidigo // The bubble's clock.
			_, err := reporting.Reconcile(t.Context(), reconcile.Request{NamespacedName: key})
			require.NoError(t, err)
			out := &v1alpha1.RolloutTarget{}
			require.NoError(t, r.Client.Get(t.Context(), key, out))
			if c := out.Status.Conditions; len(c) > 0 {
				return c[0].Reason
			}
			return ""
		}
		d.err = status.Error(codes.Unavailable, "connection refused")
		assert.Empty(t, reasonAfter(0))
		assert.Empty(t, reasonAfter(20*time.Second), "a driver that restarts")
		assert.Equal(t, "DriverUnavailable", reasonAfter(11*time.Second))
		d.err = nil
		assert.NotEqual(t, "DriverUnavailable", reasonAfter(0), "once it answers")
	})
}

// Kruise's webhook refuses what it can't judge, as while its manager is away.
func TestRefusedMirrorIsSaid(t *testing.T) {
	down := errors.New("failed calling webhook: connection refused")
	r, d := bench(t, view(edited("two"), listens), interceptor.Funcs{
		Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
			return down
		},
	})
	_, err := (&host.Reporting{Of: r, Logger: r.Logger}).Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "default", Name: "vllm"}})
	if !errors.Is(err, down) || len(d.calls) != 0 {
		t.Errorf("error %v, calls %v: want the error, for another try, and nothing released", err, d.calls)
	}
	out := &v1alpha1.RolloutTarget{}
	require.NoError(t, r.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "vllm"}, out))
	c := out.Status.Conditions
	assert.True(t, len(c) == 1 && c[0].Reason == "NotWritten", "conditions %v", c)
}

func runScripted(ctx context.Context, config *rest.Config, s host.Settings) error {
	s.Driver = &scripted{}
	return Run(ctx, config, s)
}

func TestCampaignRequiresFilledCaches(t *testing.T) {
	t.Parallel()
	hosttest.CampaignRequiresCaches(t, runScripted,
		hosttest.Kind{GroupVersionKind: v1alpha1.GroupVersion.WithKind("RolloutTarget"), Resource: "rollouttargets"},
		hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"},
		hosttest.Kind{GroupVersionKind: host.DisaggregatedSet, Resource: "disaggregatedsets"},
		hosttest.Kind{GroupVersionKind: revisionKind, Resource: "controllerrevisions"})
}

func TestRunSaysWhatIsNotInstalled(t *testing.T) {
	for _, test := range []struct{ name, serves, want string }{
		{"neither", "", "kubectl apply -k config/kruise/crd"},
		{"no LeaderWorkerSet", "/apis/lockstep.dev/v1alpha1", "install LWS v0.9.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			const list = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"lockstep.dev/v1alpha1","resources":[{"name":"rollouttargets","kind":"RolloutTarget"}]}`
			hosttest.Refuses(t, runScripted, map[string]string{test.serves: list}, test.want)
		})
	}
}
