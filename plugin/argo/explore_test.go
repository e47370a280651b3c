// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/explore"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// world is a state of a small world: one LeaderWorkerSet with templates a, b and c, one Rollout, Argo's controller, this plugin's
// Controller and a driver. It is comparable, so that each state is visited once.
type world struct {
	explore.Driver

	// The Rollout. Its pod template is its annotation, and the hash of a template is the annotation, too.
	exists, invalid, fresh   bool // fresh: Argo has observed the generation
	lost                     bool // the ReplicaSet of the stable hash was deleted
	uid, number, index       int8
	noted                    revisions
	hash, stable             string // "-" before a hash: empty is no hash
	abort, full              bool
	abortedAt                bool // Argo has noted the abort
	begun                    string
	backup                   revisions // what the Rollout's annotations were when it was saved last
	progress                 progress  // the Controller's memory
	controllerDown, unlinked bool      // unlinked: the driver is not reached
	disturbances             int8
	retried                  bool // and nothing has disturbed it since

	// asked is the template that a step or a user's full promotion of it asks for now.
	asked string
}

// hashOf has no dot, which would separate fields of an id.
func hashOf(annotation string) string { return "-" + strings.ReplaceAll(annotation, ".", "+") }

func annotationOf(hash string) string {
	return strings.ReplaceAll(strings.TrimPrefix(hash, "-"), "+", ".")
}

// memory is the driver of a world. It follows the contract, and fails the test if a call has no reason.
type memory struct {
	Driver

	world *world
	// left is how many calls are answered before the plugin is killed. Negative: all.
	left   int
	kill   func()
	broken *string
}

func (m *memory) Has(c pb.Capability) bool { return c == pb.Capability_CAPABILITY_UNDO }

func (m *memory) Call(_ context.Context, request proto.Message) (*pb.BatchContext, error) {
	_, reads := request.(*pb.CalculateBatchContextRequest)
	if m.world.unlinked || m.left == 0 && !reads {
		if m.kill != nil && !reads {
			m.kill()
		}
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "no driver")
	}
	if !reads {
		m.left--
	}
	c, err := m.world.Call(request, func(what, revision string) {
		if revision != m.world.Serving && (revision != m.world.asked || what == "Disown") {
			*m.broken = fmt.Sprintf("%s of template %s, and nothing asked for it", what, revision)
		}
	})
	if _, undo := request.(*pb.UndoRequest); undo && (err != nil || m.world.InFlight()) {
		*m.broken = "a template is restored over another one than was decided about"
	}
	return c, err
}

// explorer takes the actions of a world with these steps.
type explorer struct {
	t      *testing.T
	steps  []v1alpha1.CanaryStep
	config *Config
	done   context.Context // has ended, so that ReconcileEndNow makes one call
	broken string
}

func (e *explorer) rollout(w *world) *v1alpha1.Rollout {
	ro := &v1alpha1.Rollout{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "ro", UID: types.UID(fmt.Sprintf("%08d", w.uid)), Generation: 2,
		Annotations: map[string]string{annotationNumber: fmt.Sprint(w.number)},
	}}
	for key, value := range w.noted.annotations() {
		ro.Annotations[key] = value
	}
	if w.noted.template != "" {
		ro.Spec.Template.Annotations = map[string]string{AnnotationRevision: w.noted.template}
	}
	ro.Spec.Strategy.Canary = &v1alpha1.CanaryStrategy{Steps: e.steps}
	ro.Status = v1alpha1.RolloutStatus{
		CurrentPodHash: w.hash, StableRS: w.stable, ObservedGeneration: "1", Abort: w.abort, PromoteFull: w.full,
		CurrentStepIndex: ptr.To(int32(w.index)),
	}
	if w.fresh {
		ro.Status.ObservedGeneration = "2"
		if w.invalid {
			ro.Status.Conditions = []v1alpha1.RolloutCondition{{Type: v1alpha1.InvalidSpec, Status: "True"}}
		}
	}
	if w.abortedAt {
		ro.Status.AbortedAt = &metav1.Time{}
	}
	if w.begun != "" {
		ro.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{{
			Name: PluginName, Operation: v1alpha1.StepPluginOperationRun, Status: stepStatus{Release: w.begun}.encode(),
		}}
	}
	return ro
}

// control is one action of the Controller, with its own facts.
func (e *explorer) control(w *world) {
	if w.controllerDown || w.unlinked {
		return
	}
	driver := &memory{world: w, left: -1, broken: &e.broken}
	c := &Controller{Driver: driver, Logger: slog.New(slog.DiscardHandler)}
	c.init()
	if !w.exists {
		e.orphan(w, c)
		return
	}
	ro := e.rollout(w)
	c.remember(ro.UID, func(m *remembered) { m.progress = w.progress })
	if w.hash != "" { // the ReplicaSet that Argo made for it
		c.remember(ro.UID, func(m *remembered) { m.set = replicaSet{hash: w.hash, revision: annotationOf(w.hash)} })
	}
	f, err := c.facts(e.done, ro, e.config)
	require.NoError(e.t, err)
	t := NewTarget(driver, f, e.config)
	m := planMove(t, w.Context())
	if m.annotate != nil {
		w.fresh = w.fresh && m.annotate.template == w.noted.template
		w.noted = *m.annotate
		return
	}
	_, _ = t.Call(context.Background(), m.Request) // a refusal leads to another decision
}

// orphan is what the Controller does with the workload of a Rollout that was deleted.
func (e *explorer) orphan(w *world, c *Controller) {
	if w.Owner == "" && !w.Adopted {
		return
	}
	c.Client, c.rollouts = absent{}, newRolloutInformer(nil, "")
	_, err := c.reconcileWorkload(context.Background(), types.NamespacedName{Namespace: "ns", Name: "w"})
	require.NoError(e.t, err)
}

// absent is an API server without Rollouts.
type absent struct {
	dynamic.NamespaceableResourceInterface
}

func (a absent) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return a
}

func (a absent) Namespace(string) dynamic.ResourceInterface { return a }

func (absent) Get(_ context.Context, name string, _ metav1.GetOptions, _ ...string) (*unstructured.Unstructured, error) {
	return nil, apierrors.NewNotFound(rolloutResource.GroupResource(), name)
}

// reconcile is one reconciliation of Argo's controller v1.10. The plugin is killed after so many calls of the driver; -1: not at all.
func (e *explorer) reconcile(w *world, calls int) {
	last := int8(len(e.steps))
	want := hashOf(w.noted.template)
	switch {
	case !w.exists:
		return
	case w.invalid:
		w.fresh = true // patchCondition
		return
	case w.hash != want:
		w.fresh, w.hash, w.abort, w.abortedAt, w.full, w.begun, w.index, w.asked = true, want, false, false, false, "", 0, ""
		w.number++
		if w.stable == want {
			w.index, w.lost = last, false
		}
		e.saw(w)
		return
	}
	driver := &memory{world: w, left: calls, broken: &e.broken}
	router := &Plugin{Driver: driver, Logger: slog.New(slog.DiscardHandler), Context: e.done}
	target := func(change func(*Facts)) Target {
		f := ReadFacts(e.rollout(w))
		f.Current = true // as in Plugin.read
		change(&f)
		return NewTarget(driver, f, e.config)
	}
	if w.stable != "" && !e.settled(func() error {
		_, err := router.reconcileEnd(e.done, target(func(*Facts) {}))
		return err
	}) {
		return
	}
	if w.abort && w.begun != "" {
		abort := func() error {
			_, err := ReconcileEndNow(e.done, target(func(f *Facts) { f.Abort = true }))
			return err
		}
		_ = e.settled(abort) // an error is not retried
		w.begun = ""
	}
	if w.abortedAt && !w.abort {
		w.begun = "" // cleanStatusForRetry; the first call has them, with the time of the abort
	}
	ends := w.stable == "" || w.lost || w.full || !w.abort && w.stable != w.hash && w.index == last // shouldFullPromote
	if !w.abort && !w.full && w.hash != w.stable && w.index < last && e.config.Steps[int(w.index)] != (Step{}) && !w.unlinked {
		e.step(w, driver, target(func(*Facts) {}))
	}
	w.fresh = true
	if ends {
		w.stable, w.index, w.full, w.abort, w.lost = w.hash, last, false, false, false // promoteStable
	}
	w.abortedAt = w.abort
	e.saw(w)
}

// settled calls until there is no error. It reports false for an error that lasts.
func (e *explorer) settled(call func() error) bool {
	for range 6 {
		if call() == nil {
			return true
		}
	}
	return false
}

func (e *explorer) step(w *world, driver *memory, t Target) {
	if w.stable != "" {
		w.asked = w.noted.standsFor()
	}
	if driver.left == 0 {
		return // killed before its first call, which would be retried for seconds
	}
	ctx, kill := context.WithCancel(context.Background())
	defer kill()
	driver.kill = kill
	out, err := t.Run(ctx, e.config.Steps[int(w.index)], 0)
	if err != nil {
		return
	}
	if out.Release != "" {
		w.begun = out.Release
	}
	switch out.Done {
	case converge.Reached:
		w.index++
	case converge.Failed:
		if w.retried {
			e.broken = "a retry fails: " + out.Message
		}
		w.abort, w.asked = true, ""
	case converge.Wait, converge.Call, converge.Held, converge.Foreign, converge.RolledBack:
	}
}

// saw is the Controller's watch event of a status.
func (e *explorer) saw(w *world) {
	if !w.exists || w.controllerDown {
		return
	}
	c := &Controller{}
	c.init()
	ro := e.rollout(w)
	c.remember(ro.UID, func(m *remembered) { m.progress = w.progress })
	c.noteProgress(ro)
	w.progress = c.recall(ro.UID).progress
}

// next returns the worlds that follow, by the name of the action.
func (e *explorer) next(w world) map[string]world {
	out := map[string]world{}
	take := func(name string, cost int8, act func(*world)) {
		if w.disturbances < cost {
			return
		}
		after := w
		after.disturbances -= cost
		after.retried = after.retried && cost == 0
		act(&after)
		if after != w && after.number <= 4 {
			out[name] = after
		}
	}
	take("the driver works", 0, func(w *world) { w.Work() })
	take("the Controller reconciles", 0, e.control)
	take("Argo reconciles", 0, func(w *world) { e.reconcile(w, -1) })
	take("the plugin is killed at its first call", 1, func(w *world) { e.reconcile(w, 0) })
	take("the plugin is killed after its first call", 1, func(w *world) { e.reconcile(w, 1) })
	for _, template := range []string{"a", "b", "c"} {
		take("template "+template, 1, func(w *world) { w.Template = template })
	}
	take("another client rolls back", 1, func(w *world) {
		if w.InFlight() {
			w.State, w.Intent, w.asked = pb.State_STATE_ROLLING_BACK, pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK, ""
		}
	})
	take("the driver is not reached", 1, func(w *world) { w.unlinked = true })
	take("the driver is reached", 0, func(w *world) { w.unlinked = false })
	take("the Controller stops", 1, func(w *world) { w.controllerDown, w.progress = true, progress{} })
	take("the Controller starts", 0, func(w *world) {
		if w.controllerDown {
			w.controllerDown = false
			e.saw(w)
		}
	})
	if !w.exists {
		apply := func(w *world, noted revisions) {
			w.exists, w.uid, w.number, w.noted = true, w.uid+1, 0, noted
			w.hash, w.stable, w.index, w.abort, w.full, w.begun, w.fresh, w.progress = "", "", 0, false, false, "", false, progress{}
			w.lost, w.abortedAt = false, false
		}
		take("the Rollout is applied", 0, func(w *world) { apply(w, revisions{}) })
		take("the Rollout is restored from a backup", 1, func(w *world) { apply(w, w.backup) })
		return out
	}
	take("the Rollout is deleted", 1, func(w *world) { w.exists, w.asked, w.backup, w.invalid = false, "", w.noted, false })
	take("the Rollout becomes invalid", 1, func(w *world) { w.invalid, w.fresh = true, false })
	take("the Rollout is corrected", 0, func(w *world) {
		if w.invalid {
			w.invalid, w.fresh = false, false
		}
	})
	take("undo", 1, func(w *world) {
		if w.noted.template != "" {
			w.noted.template, w.fresh, w.asked = "", false, ""
		}
	})
	if w.hash != w.stable && w.hash != "" {
		paused := int(w.index) < len(e.steps) && e.steps[w.index].Pause != nil
		take("promote", 0, func(w *world) {
			if paused && !w.abort {
				w.index++
			}
		})
		ask := func(w *world) {
			if w.hash == hashOf(w.noted.template) {
				w.asked = w.noted.standsFor()
			}
		}
		take("promote --full", 1, func(w *world) { w.full = true; ask(w) })
		take("promote --skip-all-steps", 1, func(w *world) {
			if !w.abort {
				w.index = int8(len(e.steps))
				ask(w)
			}
		})
		take("abort", 1, func(w *world) { w.abort, w.asked = true, "" })
		take("retry", 1, func(w *world) {
			if w.abort {
				w.abort, w.index, w.retried = false, 0, w.abortedAt && !w.full && !w.lost
			}
		})
		take("the stable ReplicaSet is deleted", 1, func(w *world) { w.lost = w.stable != "" })
	}
	return out
}

// TestEveryStateOfArgo visits every state of a small world that is reachable with so many disturbances. In each, no call begins,
// continues or promotes a release of a template that nothing asks for; and from states in between, what was started ends.
func TestEveryStateOfArgo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		steps        string
		disturbances int8
	}{
		"steps":             {"[{plugin: {name: lockstep/lws, config: {upgrade: 50%}}}, {plugin: {name: lockstep/lws, config: {promote: true}}}]", 3},
		"pause first":       {"[{pause: {}}, {plugin: {name: lockstep/lws, config: {promote: true}}}]", 3},
		"without promotion": {"[{plugin: {name: lockstep/lws, config: {upgrade: 100%}}}]", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ro := parse(t, "{trafficRouting: {plugins: {lockstep/lws: {workload: w}}}, steps: "+test.steps+"}")
			ro.Spec.ProgressDeadlineSeconds = ptr.To[int32](endless)
			config, err := readTyped(ro)
			if err != nil || config.Unfit != nil {
				t.Fatal(err, config.Unfit)
			}
			done, cancel := context.WithCancel(context.Background())
			cancel()
			e := &explorer{t: t, steps: ro.Spec.Strategy.Canary.Steps, config: config, done: done}
			explore.World[world]{Next: e.next, End: e.settleDown, Broken: &e.broken}.Visit(t, world{
				Driver: explore.Driver{Template: "a", Serving: "a"}, disturbances: test.disturbances,
			})
		})
	}
}

// settleDown lets all parts work until nothing changes, with a user who applies a missing Rollout, corrects an invalid one and promotes
// pauses. What waits is a retry, or another template.
func (e *explorer) settleDown(w world) (end world, released, waits bool) {
	for range 80 {
		was := w
		w.unlinked, w.controllerDown, w.invalid = false, false, false
		if !w.exists {
			w = e.next(w)["the Rollout is applied"]
		}
		w.Work()
		e.control(&w)
		e.reconcile(&w, -1)
		if w.hash != w.stable && int(w.index) < len(e.steps) && e.steps[w.index].Pause != nil && !w.abort {
			w.index++
		}
		if was == w {
			break
		}
	}
	return w, w.Serving == w.Template, w.abort || w.State == pb.State_STATE_ROLLED_BACK
}
