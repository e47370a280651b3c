// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// warnings records the warnings of a Controller.
type warnings struct {
	mu  sync.Mutex
	all []string
}

func (w *warnings) Eventf(about, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, about.(*corev1.ObjectReference).Name+" "+reason+" "+fmt.Sprintf(note, args...))
}

func (w *warnings) have(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.all, func(s string) bool { return strings.Contains(s, text) })
}

// fixture is a Controller in a cluster of Rollouts only, and a driver in memory.
type fixture struct {
	t          *testing.T
	fake       *plugintest.FakeDriver
	driver     Driver
	client     *dynamicfake.FakeDynamicClient
	warnings   *warnings
	controller *Controller
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	fake := plugintest.NewFakeDriver()
	h := &fixture{t: t, fake: fake, driver: plugintest.Connect(t, fake, nil), warnings: &warnings{}}
	h.client = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{rolloutResource: "RolloutList"})
	h.controller = &Controller{Driver: h.driver, Client: h.client, Logger: slog.New(slog.DiscardHandler), Events: h.warnings}
	return h
}

// start runs the Controller until the test ends.
func (h *fixture) start() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	done := make(chan error, 1)
	go func() { done <- h.controller.Run(ctx) }()
	h.t.Cleanup(func() {
		cancel()
		assert.NoError(h.t, <-done)
	})
	// The client in memory loses what is created between an informer's list and its watch.
	h.eventually("the Controller watches", func() bool {
		return slices.ContainsFunc(h.client.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() == "watch" })
	})
}

// create makes a Rollout that has deployed its first template.
func (h *fixture) create(name, config string, at time.Time) {
	h.t.Helper()
	ro := parse(h.t, `{trafficRouting: {plugins: {lockstep/lws: `+config+`}}, steps: [{plugin: {name: lockstep/lws, config: {upgrade: 50%}}}]}`)
	ro.TypeMeta = metav1.TypeMeta{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout"}
	ro.ObjectMeta = metav1.ObjectMeta{
		Namespace: "ns", Name: name, UID: types.UID(name + "-" + uid), Generation: 1, CreationTimestamp: metav1.NewTime(at),
		Annotations: map[string]string{annotationNumber: "1"},
	}
	ro.Status = v1alpha1.RolloutStatus{CurrentPodHash: "h1", StableRS: "h1", ObservedGeneration: "1"}
	raw, err := json.Marshal(ro)
	require.NoError(h.t, err)
	u := &unstructured.Unstructured{}
	require.NoError(h.t, u.UnmarshalJSON(raw))
	_, err = h.client.Resource(rolloutResource).Namespace("ns").Create(h.t.Context(), u, metav1.CreateOptions{})
	require.NoError(h.t, err)
}

// createReplicaSet makes the ReplicaSet of a template of Rollout a.
func (h *fixture) createReplicaSet(hash, owner, revision string, at time.Time) {
	h.t.Helper()
	set := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "ReplicaSet",
		"metadata": map[string]any{
			"namespace": "ns", "name": "a-" + hash, "labels": map[string]any{v1alpha1.DefaultRolloutUniqueLabelKey: hash},
			"ownerReferences": []any{map[string]any{"apiVersion": "v1", "kind": "Rollout", "name": "a", "uid": owner, "controller": true}},
		},
		"spec": map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": map[string]any{AnnotationRevision: revision}}}},
	}}
	set.SetCreationTimestamp(metav1.NewTime(at))
	_, err := h.client.Resource(replicaSetResource).Namespace("ns").Create(h.t.Context(), set, metav1.CreateOptions{})
	require.NoError(h.t, err)
}

// read returns the Rollout as it is.
func (h *fixture) read(name string) *v1alpha1.Rollout {
	h.t.Helper()
	u, err := h.client.Resource(rolloutResource).Namespace("ns").Get(h.t.Context(), name, metav1.GetOptions{})
	require.NoError(h.t, err)
	ro := readRollout(u)
	require.NotNil(h.t, ro, "can't decode %v", u)
	return ro
}

// edit changes it.
func (h *fixture) edit(name string, change func(map[string]any)) {
	h.t.Helper()
	client := h.client.Resource(rolloutResource).Namespace("ns")
	u, err := client.Get(h.t.Context(), name, metav1.GetOptions{})
	require.NoError(h.t, err)
	change(u.Object)
	u.SetResourceVersion(u.GetResourceVersion() + "1") // client-go's fake keeps it
	_, err = client.Update(h.t.Context(), u, metav1.UpdateOptions{})
	require.NoError(h.t, err)
}

func (h *fixture) delete(name string) {
	h.t.Helper()
	require.NoError(h.t, h.client.Resource(rolloutResource).Namespace("ns").Delete(h.t.Context(), name, metav1.DeleteOptions{}))
}

// caughtUp waits until the Controller has looked at all that is there: another Rollout, which comes later, has been written to by then.
func (h *fixture) caughtUp() {
	h.t.Helper()
	h.caughtUpWith("v", "b")
}

func (h *fixture) caughtUpWith(workload, rollout string) {
	h.t.Helper()
	h.fake.SetWorkload("ns", workload, 4, "t1")
	h.create(rollout, "{workload: "+workload+"}", time.Now())
	h.eventually("another Rollout is stamped", func() bool { return h.read(rollout).Annotations[AnnotationSeen] != "" })
}

func (h *fixture) workload() *pb.BatchContext { return h.workloadOf("w") }

func (h *fixture) workloadOf(name string) *pb.BatchContext {
	h.t.Helper()
	c, err := h.driver.Call(h.t.Context(), &pb.CalculateBatchContextRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: name}})
	require.NoError(h.t, err)
	return c
}

// eventually waits for a condition.
func (h *fixture) eventually(what string, check func() bool) {
	h.t.Helper()
	await.True(h.t, what, check)
}

// label sets the instance of Argo's controller that handles a Rollout.
func (h *fixture) label(rollout, instance string) {
	h.t.Helper()
	h.edit(rollout, func(ro map[string]any) {
		_ = unstructured.SetNestedField(ro, instance, "metadata", "labels", v1alpha1.LabelKeyControllerInstanceID)
	})
}

func (h *fixture) owned() bool { return h.workload().GetOwner() == "argo-rollouts/ns/a" }

// Argo considers a template stable that the groups don't run, as after a Rollout was restored: it starts over, and its event says how to
// promote. Whether the status is that of the template, the ReplicaSet tells.
func TestControllerStartsOver(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ name, owner, revision, want string }{
		{"stable", "a-" + uid, "t2", "t2.2"},
		{"of an older template", "a-" + uid, "t1", "t2"},
		{"another Rollout's ReplicaSet", "b-" + uid, "t2", "t2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			h.fake.SetWorkload("ns", "w", 4, "t1")
			_, err := h.driver.Call(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"}})
			require.NoError(t, err)
			h.fake.SetWorkload("ns", "w", 4, "t2")
			h.createReplicaSet("h1", test.owner, test.revision, time.Now())
			h.create("a", "{workload: w}", time.Now())
			h.edit("a", func(ro map[string]any) {
				_ = unstructured.SetNestedField(ro, "t2", "spec", "template", "metadata", "annotations", AnnotationRevision)
				for key, value := range map[string]string{AnnotationFirst: "t1", AnnotationSeen: "t2"} {
					_ = unstructured.SetNestedField(ro, value, "metadata", "annotations", key)
				}
			})
			h.controller.init()
			key := keyOf(h.read("a"))
			require.NoError(t, h.controller.rollouts.GetIndexer().Add(judged{Rollout: h.read("a")}))
			_, err = h.controller.reconcileRollout(t.Context(), key)
			require.NoError(t, err)
			got := h.read("a").Spec.Template.Annotations[AnnotationRevision]
			if over := test.want != "t2"; got != test.want || h.warnings.have("a StartedOver") != over {
				t.Errorf("the template stands for %q, want %q; the event is there: %v", got, test.want, !over)
			}
		})
	}
}

// Argo considers a template stable. What asked for it, the Controller has seen before: promote --full or the end of the steps, unless they were
// taken back, or a rollbackWindow, by the ages of the ReplicaSets.
func TestControllerSawWhatAsked(t *testing.T) {
	t.Parallel()
	const window = "window"
	tests := map[string]struct {
		seen []string // in progress
		want bool
	}{
		"nothing":                          {nil, false},
		"a step":                           {[]string{""}, false},
		"promote --full":                   {[]string{"full"}, true},
		"promote --full, then abort":       {[]string{"full", "abort"}, false},
		"the end of the steps":             {[]string{"", "steps"}, true},
		"a rollbackWindow":                 {[]string{window}, true},
		"a rollbackWindow, newer template": {[]string{window + " newer"}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			h.controller.init()
			h.create("a", "{workload: w}", time.Now())
			ro := h.read("a")
			old := time.Now().Add(-time.Hour)
			if slices.Contains(test.seen, window+" newer") {
				old = time.Now().Add(time.Hour)
			}
			for hash, at := range map[string]time.Time{"h1": time.Now(), "h2": old} {
				h.createReplicaSet(hash, "a-"+uid, "", at)
			}
			config, err := readTyped(ro)
			require.NoError(t, err)
			facts := func() Facts {
				h.controller.noteProgress(ro)
				f, err := h.controller.facts(t.Context(), ro, config)
				require.True(t, err == nil && f.Current, "%+v, %v", f, err)
				return f
			}
			facts()
			ro.Status.CurrentPodHash = "h2"
			for _, seen := range test.seen {
				ro.Status.Abort, ro.Status.PromoteFull = seen == "abort", seen == "full" || seen == "abort"
				if ro.Spec.RollbackWindow = nil; strings.HasPrefix(seen, window) {
					ro.Spec.RollbackWindow = &v1alpha1.RollbackWindowSpec{Revisions: 1}
				}
				if ro.Status.CurrentStepIndex = nil; seen == "steps" {
					ro.Status.CurrentStepIndex = ptr.To[int32](1)
				}
				h.controller.noteProgress(ro)
			}
			ro.Status.StableRS, ro.Status.CurrentStepIndex, ro.Status.Abort, ro.Status.PromoteFull = "h2", ptr.To[int32](1), false, false
			if got := facts(); !got.Promoted() || got.asked() != test.want {
				t.Errorf("asked %v, want %v", got.asked(), test.want)
			}
		})
	}
}

// Argo notes the generation of a spec that it has only paused or resumed, and leaves the index of the steps before an edit.
func TestControllerPromotesNothingByTheIndex(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.controller.init()
	h.create("a", "{workload: w}", time.Now())
	h.createReplicaSet("h2", "a-"+uid, "", time.Now())
	ro := h.read("a")
	config, err := readTyped(ro)
	require.NoError(t, err)
	ro.Status.CurrentPodHash, ro.Status.CurrentStepIndex = "h2", ptr.To[int32](3)
	f, err := h.controller.facts(t.Context(), ro, config)
	require.NoError(t, err)
	assert.True(t, f.Current && !f.asked(), "%+v", f)
}

// A mistake elsewhere in the configuration does not let go of the workload.
func TestControllerMistake(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.create("a", "{workload: w, stile: Canary}", time.Now())
	h.start()
	h.eventually("the workload is held", h.owned)
	h.eventually("the mistake is named", func() bool { return h.warnings.have(`a InvalidConfig`) && h.warnings.have(`"stile"`) })
	h.fake.SetWorkload("ns", "w", 4, "t2")
	h.eventually("the step is to say it too", func() bool { return h.read("a").Spec.Template.Annotations[AnnotationRevision] == "t2" })
}

// A mistake that hides the workload's name does not end the hold either: LWS would roll a template that was not released.
func TestControllerMistakeInTheName(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.create("a", "{workload: w}", time.Now())
	h.start()
	h.eventually("the workload is held", h.owned)
	h.edit("a", func(ro map[string]any) {
		_ = unstructured.SetNestedMap(ro, map[string]any{"workloads": "w"}, "spec", "strategy", "canary", "trafficRouting", "plugins", PluginName)
	})
	h.eventually("the mistake is named", func() bool { return h.warnings.have("a InvalidConfig") })
	h.caughtUp()
	if !h.owned() || h.workload().GetState() == pb.State_STATE_UNMANAGED {
		t.Errorf("the workload was let go of: %v", h.workload())
	}
	h.delete("a")
	h.eventually("it is given back", func() bool { return h.workload().GetState() == pb.State_STATE_UNMANAGED })
}

// What ends a release must follow from the Rollout as it is, not as it was when the cache heard of it.
func TestControllerConfirms(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.create("a", "{workload: w}", time.Now())
	h.controller.init()
	_, err := h.driver.Call(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Namespace: "ns", Name: "w"}})
	require.NoError(t, err)
	h.fake.SetWorkload("ns", "w", 4, "t2")
	h.edit("a", func(ro map[string]any) { _ = unstructured.SetNestedField(ro, "h2", "status", "currentPodHash") })
	h.begin("w", "a0123456.1.h2.t2.1", "argo-rollouts/ns/a")
	abort := func(yes bool) {
		h.edit("a", func(ro map[string]any) { _ = unstructured.SetNestedField(ro, yes, "status", "abort") })
	}
	abort(true)
	ro, c := h.read("a"), h.workload()
	config, err := readTyped(ro)
	require.NoError(t, err)
	f := ReadFacts(ro)
	m := planMove(NewTarget(h.driver, f, config), c)
	r, ok := m.Request.(*pb.FinalizeRequest)
	require.True(t, ok && r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK, "an abort asks for %v (%s): %v", m.Outcome, m.Why, c)
	sure, err := h.controller.confirmed(t.Context(), ro, m)
	assert.True(t, sure && err == nil, "it is aborted: %t, %v", sure, err)
	abort(false)
	sure, err = h.controller.confirmed(t.Context(), ro, m)
	assert.True(t, !sure && err == nil, "it was aborted, and is not any more: %t, %v", sure, err)
	h.delete("a")
	sure, err = h.controller.confirmed(t.Context(), ro, m)
	assert.True(t, !sure && err == nil, "it is gone: %t, %v", sure, err)
}

// A Rollout whose workload does not exist, or is not shown to it, says so. The driver is asked less and less often, until it answers.
func TestControllerReportsAnUnreadWorkload(t *testing.T) {
	t.Parallel()
	for says, reason := range map[string]pb.ErrorReason{
		"there is no LeaderWorkerSet ns/w": pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
		"it lacks drive/get":               pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			shown := false
			h.fake.OnCalculate = func() error {
				if shown {
					return nil
				}
				return drivererr.New(reason, "%s", says)
			}
			h.fake.SetWorkload("ns", "w", 4, "t1")
			h.create("a", "{workload: w}", time.Now())
			h.controller.init()
			require.NoError(t, h.controller.rollouts.GetIndexer().Add(judged{Rollout: h.read("a")}))
			i := item{NamespacedName: keyOf(h.read("a"))}
			const event = "a WorkloadUnread this Rollout neither holds nor releases LeaderWorkerSet w: "
			for n := range 10 {
				h.controller.queue.Add(i)
				h.controller.work(t.Context())
				if reason == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND {
					assert.Equal(t, n+1, h.controller.queue.NumRequeues(i), "tries that lengthen the pause")
				}
			}
			count := func() int {
				return len(slices.DeleteFunc(slices.Clone(h.warnings.all), func(s string) bool { return !strings.HasPrefix(s, event) || !strings.Contains(s, says) }))
			}
			assert.Equal(t, 1, count(), "%q", h.warnings.all)
			for _, shown = range []bool{true, false} {
				h.controller.queue.Add(i)
				h.controller.work(t.Context())
			}
			assert.Equal(t, 2, count(), "%q", h.warnings.all)
		})
	}
}

// What the API server can't do now is done again without a user. What it refuses needs one.
func TestTransientErrors(t *testing.T) {
	t.Parallel()
	resource := rolloutResource.GroupResource()
	for _, test := range []struct {
		err  error
		want bool
	}{
		{apierrors.NewTooManyRequests("later", 1), true},
		{apierrors.NewServiceUnavailable("starting"), true},
		{apierrors.NewInternalError(errors.New("etcd")), true},
		{apierrors.NewTimeoutError("slow", 1), true},
		{apierrors.NewConflict(resource, "a", nil), true},
		{&url.Error{Op: "Get", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}, true},
		{drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "away"), true},
		{apierrors.NewForbidden(resource, "a", errors.New("no role")), false},
		{drivererr.New(pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "no role"), false},
		{errors.New("a defect"), false},
	} {
		assert.Equal(t, test.want, isTransient(fmt.Errorf("get Rollout a: %w", test.err)), "%v", test.err)
	}
}

// The Controller says that an abort came too late, and does not call again and again.
func TestControllerReportsALateAbort(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.OnFinalize = func(pb.FinalizeIntent, *pb.BatchContext) error {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED, "the release is promoted")
	}
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.begin("w", "x.1.h.t1.1", "argo-rollouts/ns/a")
	h.fake.Set("ns", "w", func(c *pb.BatchContext) {
		c.State, c.Intent = pb.State_STATE_PROMOTING, pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	})
	h.create("a", "{workload: w}", time.Now())
	h.edit("a", func(ro map[string]any) {
		_ = unstructured.SetNestedField(ro, true, "status", "abort")
		_ = unstructured.SetNestedField(ro, "h2", "status", "currentPodHash")
	})
	h.createReplicaSet("h2", "a-"+uid, "", time.Now())
	h.controller.init()
	ro := h.read("a")
	require.NoError(t, h.controller.rollouts.GetIndexer().Add(judged{Rollout: ro}))
	again, err := h.controller.reconcileRollout(t.Context(), keyOf(ro))
	require.NoError(t, err)
	assert.True(t, again == requeueBlocked && h.warnings.have("a NotDone the Rollout was aborted: "), "again in %v; %q", again, h.warnings.all)
}

func TestControllerRival(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.create("b", "{workload: w}", time.Now())
	h.create("a", "{workload: w}", time.Now().Add(-time.Hour))
	h.start()
	h.eventually("the first has it", h.owned)
	h.eventually("the second gets a warning", func() bool { return h.warnings.have("b WorkloadTaken") && h.warnings.have("released by Rollout a") })
	assert.Empty(t, h.controller.Rival(ReadFacts(h.read("a")), "w"), "the first has a rival")
	h.delete("a")
	h.eventually("the second inherits", func() bool { return h.workload().GetOwner() == "argo-rollouts/ns/b" })
}

// Of two Rollouts that were made in the same second the one that has the workload keeps it.
func TestControllerRivalOfTheSameSecond(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	at := time.Now().Truncate(time.Second)
	h.create("b", "{workload: w}", at)
	h.start()
	h.eventually("the first has it", func() bool {
		return h.workload().GetOwner() == "argo-rollouts/ns/b" && h.read("b").Annotations[AnnotationFirst] != ""
	})
	h.create("a", "{workload: w}", at)
	h.eventually("the second gets a warning", func() bool { return h.warnings.have("a WorkloadTaken") && h.warnings.have("released by Rollout b") })
	assert.Equal(t, "argo-rollouts/ns/b", h.workload().GetOwner(), "the workload is of")
}

// begin starts a release past the Controller.
func (h *fixture) begin(workload, id, owner string) {
	h.t.Helper()
	_, err := h.driver.Call(h.t.Context(), &pb.InitializeRequest{
		Workload: &pb.WorkloadRef{Namespace: "ns", Name: workload}, ReleaseId: id, Owner: owner,
		Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"50%"}},
	})
	require.NoError(h.t, err)
}

// A Rollout that was deleted while no Controller ran is known by the owner of the workload's last release.
func TestControllerFindsOrphans(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		owner, template string
		want            pb.State
	}{
		"its own":            {"argo-rollouts/ns/gone", "t1", pb.State_STATE_UNMANAGED},
		"its template waits": {"argo-rollouts/ns/gone", "t2", pb.State_STATE_NOTHING_TO_RELEASE},
		"someone else's":     {"lockstep-cli/jo", "t1", pb.State_STATE_NOTHING_TO_RELEASE},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			h.fake.SetWorkload("ns", "w", 4, "t1")
			h.begin("w", "x.1.h.t1.1", test.owner)
			h.fake.SetWorkload("ns", "w", 4, test.template)
			h.fake.SetWorkload("ns", "last", 4, "t1")
			h.begin("last", "x.1.h.t1.1", "argo-rollouts/ns/gone-too")
			h.start()
			h.eventually("the last of the list is free", func() bool { return h.workloadOf("last").GetState() == pb.State_STATE_UNMANAGED })
			h.eventually("it is as it should be", func() bool { return h.workload().GetState() == test.want })
		})
	}
}

// awaiting is a driver whose first answers are NOT_SYNCED.
type awaiting struct {
	Driver

	mu      sync.Mutex
	refused int
}

func (a *awaiting) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refused > 0 {
		a.refused--
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "the caches are not filled yet")
	}
	return a.Driver.Call(ctx, request)
}

// Controller and driver start together: an orphan is not passed over because the driver's caches are not filled yet.
func TestControllerFindsOrphansOnceTheDriverAnswers(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.begin("w", "x.1.h.t1.1", "argo-rollouts/ns/gone")
	h.controller.Driver = &awaiting{Driver: h.driver, refused: 1}
	h.start()
	h.eventually("it is given back", func() bool { return h.workload().GetState() == pb.State_STATE_UNMANAGED })
}

// From a handover on a Rollout names the object that was its workload before: neither the hold nor an edit is lost.
func TestControllerAfterAHandover(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	for _, name := range []string{"w", "w-next"} { // both objects have the release
		h.fake.SetWorkload("ns", name, 4, "t1")
		h.begin(name, "x.1.h.t1.1", "argo-rollouts/ns/a")
	}
	h.create("a", "{workload: w}", time.Now())
	h.start()
	h.caughtUp()
	h.fake.Set("ns", "w", func(c *pb.BatchContext) { c.Workload.Name = "w-next" })
	h.fake.SetWorkload("ns", "w", 4, "t2")
	h.eventually("the edit is observed", func() bool { return h.read("a").Spec.Template.Annotations[AnnotationRevision] == "t2" })
	calls := h.fake.Calls()
	assert.False(t, slices.Contains(calls, "Disown"), "the workload was disowned: %q", calls)
}

// Of two Rollouts that name a workload by its two names after a handover, the one with the last release keeps it, and the other inherits it.
func TestControllerRivalByTheOtherName(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	for _, name := range []string{"w", "w-next"} { // both are the workload w-next
		h.fake.SetWorkload("ns", name, 4, "t1")
		h.begin(name, "x.1.h.t1.1", "argo-rollouts/ns/a")
		h.fake.Set("ns", name, func(c *pb.BatchContext) { c.Workload.Name = "w-next" })
	}
	h.create("a", "{workload: w}", time.Now())
	h.create("b", "{workload: w-next}", time.Now().Add(-time.Hour))
	h.start()
	h.eventually("the second gets a warning", func() bool { return h.warnings.have("b WorkloadTaken") && h.warnings.have("released by Rollout a") })
	h.caughtUpWith("v", "c")
	assert.Equal(t, "argo-rollouts/ns/a", h.workloadOf("w-next").GetOwner(), "the workload is of")
	h.delete("a")
	h.eventually("the second inherits", func() bool { return h.workloadOf("w-next").GetOwner() == "argo-rollouts/ns/b" })
	calls := h.fake.Calls()
	assert.False(t, slices.Contains(calls, "Disown"), "the workload was disowned: %q", calls)
}

// One of two Rollouts of a workload that does not exist is deleted: the other one is still reconciled when the workload appears.
func TestControllerWaitsForTheWorkloadOfAnotherRollout(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.create("b", "{workload: w}", time.Now().Add(-time.Hour))
	h.create("a", "{workload: w}", time.Now())
	h.start()
	h.eventually("the second gets a warning", func() bool { return h.warnings.have("a WorkloadTaken") })
	h.delete("b")
	h.caughtUpWith("v", "c")
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.eventually("the workload is held", h.owned)
}

// A field of a newer Argo, which the type has not, refuses a release, and is reported before any step.
func TestControllerJudgesUnknownFields(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.create("a", "{workload: w}", time.Now())
	h.edit("a", func(ro map[string]any) {
		_ = unstructured.SetNestedField(ro, int64(endless), "spec", "progressDeadlineSeconds")
		_ = unstructured.SetNestedField(ro, int64(3), "spec", "strategy", "canary", "newerThanThis")
		_ = unstructured.SetNestedField(ro, int64(0), "spec", "strategy", "canary", "abortScaleDownDelaySeconds")
	})
	h.start()
	h.eventually("the field is named", func() bool {
		return h.warnings.have("a InvalidConfig no release begins: spec.strategy.canary.newerThanThis: ")
	})
	h.eventually("the other one, too", func() bool {
		return h.warnings.have("a NativeFieldIgnored no effect: spec.strategy.canary.abortScaleDownDelaySeconds: ")
	})
	h.eventually("the workload is held", h.owned)
	ro := h.read("a") // as Argo's controller sends it
	if config, err := ReadLenient(ro); err != nil || config.Unfit != nil {
		t.Fatalf("the type knows the field: %v, %v", config.Unfit, err)
	}
	config, err := h.controller.ReadLenient(ro)
	assert.False(t, err != nil || config.Unfit == nil || config.Policy == nil, "accepted: %+v, %v", config, err)
	rpc := newRPCFixture(t)
	rpc.edited()
	ro.Annotations[AnnotationFirst], ro.Annotations[AnnotationSeen] = "t1", "t2"
	ro.Spec.Template.Annotations = map[string]string{AnnotationRevision: "t2"}
	ro.Status.CurrentPodHash = "h2"
	step := &Plugin{Driver: rpc.driver, Rollouts: h.controller, Logger: slog.New(slog.DiscardHandler), Context: t.Context()}
	if got, err := step.Run(ro, nil); err.HasError() || got.Phase != "Failed" || !strings.Contains(got.Message, "newerThanThis") {
		t.Errorf("the step began a release: %+v, %v", got, err)
	}
	ro.Generation++
	config, err = h.controller.ReadLenient(ro)
	assert.True(t, err == nil && config.Unfit == nil, "judged by the fields of another generation: %+v, %v", config, err)
}

// A Controller acts on the Rollouts of its own instance of Argo only.
func TestControllerInstance(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ instance, ours, theirs string }{
		"with an id":    {"blue", "blue", "green"},
		"without an id": {"", "", "green"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t)
			h.controller.InstanceID = test.instance
			h.fake.SetWorkload("ns", "w", 4, "t1")
			h.create("theirs", "{workload: w}", time.Now().Add(-time.Hour))
			h.label("theirs", test.theirs)
			h.create("a", "{workload: w}", time.Now())
			h.create("b", "{workload: v}", time.Now())
			for _, ro := range []string{"a", "b"} {
				if test.ours != "" {
					h.label(ro, test.ours)
				}
			}
			h.fake.SetWorkload("ns", "v", 4, "t1")
			h.start()
			h.eventually("a Rollout of another instance is a rival", func() bool { return h.warnings.have("a WorkloadTaken") })
			h.eventually("another workload is held", func() bool { return h.workloadOf("v").GetOwner() == "argo-rollouts/ns/b" })
			c := h.workload()
			assert.Equal(t, pb.State_STATE_UNMANAGED, c.GetState(), "it acted on a Rollout of another instance: %v", c)
			assert.True(t, !h.warnings.have("theirs ") && h.read("theirs").Annotations[AnnotationSeen] == "",
				"it wrote on a Rollout of another instance")
			h.delete("theirs")
			h.eventually("the second inherits", h.owned)
		})
	}
}

// A workload whose Rollout belongs to another instance is no orphan.
func TestControllerInstanceOrphans(t *testing.T) {
	t.Parallel()
	h := newFixture(t)
	h.fake.SetWorkload("ns", "w", 4, "t1")
	h.begin("w", "x.1.h.t1.1", "argo-rollouts/ns/theirs")
	h.create("theirs", "{workload: w}", time.Now())
	h.label("theirs", "green")
	h.fake.SetWorkload("ns", "last", 4, "t1")
	h.begin("last", "x.1.h.t1.1", "argo-rollouts/ns/gone")
	h.start()
	h.eventually("an orphan is free", func() bool { return h.workloadOf("last").GetState() == pb.State_STATE_UNMANAGED })
	h.caughtUp()
	c := h.workload()
	assert.NotEqual(t, pb.State_STATE_UNMANAGED, c.GetState(), "the workload of another instance was disowned: %v", c)
}

// As Argo's controller, one without an id handles only Rollouts without the label, also if that is empty.
func TestControllerOwns(t *testing.T) {
	t.Parallel()
	labelled := func(id string) map[string]string { return map[string]string{v1alpha1.LabelKeyControllerInstanceID: id} }
	for name, test := range map[string]struct {
		instance string
		labels   map[string]string
		want     bool
	}{
		"neither":         {"", map[string]string{"a": "b"}, true},
		"empty label":     {"", labelled(""), false},
		"label only":      {"", labelled("blue"), false},
		"the same":        {"blue", labelled("blue"), true},
		"another":         {"blue", labelled("green"), false},
		"without a label": {"blue", nil, false},
	} {
		assert.Equal(t, test.want, (&Controller{InstanceID: test.instance}).owns(&metav1.ObjectMeta{Labels: test.labels}), name)
	}
}
