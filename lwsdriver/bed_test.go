// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsfake "sigs.k8s.io/lws/client-go/clientset/versioned/fake"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/fakes"
)

// bed is a driver of a cluster that is not real. It does not run unless a test runs it; until then its caches hold what
// it was made with.
type bed struct {
	*Driver

	t    testing.TB
	core *fake.Clientset
	sets *lwsfake.Clientset
}

func newBed(t testing.TB, objects ...*lws.LeaderWorkerSet) *bed {
	t.Helper()
	return newBedOn(t, fake.NewClientset(), noRoutes(), objects...)
}

// newBedOn is newBed with other objects, too.
func newBedOn(t testing.TB, core *fake.Clientset, generic dynamic.Interface, objects ...*lws.LeaderWorkerSet) *bed {
	t.Helper()
	b := &bed{t: t, core: core, sets: lwsfake.NewClientset()}
	fakes.CopyWatched(&b.core.Fake, &b.sets.Fake)
	if routes, ok := generic.(*dynamicfake.FakeDynamicClient); ok {
		fakes.CopyWatched(&routes.Fake)
	}
	b.answerReviews(func() bool { return true })
	for _, w := range objects {
		if err := b.sets.Tracker().Add(w.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	d, err := newDriver(b.core, b.sets, generic, options{
		log: slog.New(slog.DiscardHandler), now: func() time.Time { return noon }, decided: replayed(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Driver = d
	for _, w := range objects {
		b.cache(w)
	}
	return b
}

// replayed is for WithDecisions: at the end of the test, each decision is made again from what a recording has of it.
func replayed(t testing.TB) func(plan.Observation, plan.Intent, plan.Decision, error) {
	t.Helper()
	var recording bytes.Buffer
	r := &replay.Recorder{To: &recording}
	t.Cleanup(func() {
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		err := replay.Read(&recording, func(line int, e replay.Entry) error {
			differences, err := e.Replay()
			for _, d := range differences {
				t.Errorf("decision %d is another one when it is replayed: %s", line, d)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return r.Record
}

// noRoutes is a client of a cluster without routes.
func noRoutes() dynamic.Interface { return dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()) }

// answerReviews answers whether the driver may watch.
func (b *bed) answerReviews(allowed func() bool) { answerReviews(b.core, allowed) }

func answerReviews(core *fake.Clientset, allowed func() bool) {
	core.PrependReactor("create", "selfsubjectaccessreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, &authorizationv1.SelfSubjectAccessReview{
			Status: authorizationv1.SubjectAccessReviewStatus{Allowed: allowed()},
		}, nil
	})
}

// cache shows an object to the driver as its informer would.
func (b *bed) cache(w *lws.LeaderWorkerSet) {
	b.t.Helper()
	if err := b.engine.Observer.Caches.Workloads.GetIndexer().Update(w); err != nil {
		b.t.Fatal(err)
	}
}

// run runs the driver until the test ends.
func (b *bed) run() {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run: %v", err)
		}
	})
}

// eventually waits for what other goroutines bring about.
func (b *bed) eventually(what string, condition func() bool) {
	b.t.Helper()
	timeout, ticks := time.NewTimer(20*time.Second), time.NewTicker(time.Millisecond)
	defer timeout.Stop()
	defer ticks.Stop()
	for !condition() {
		select {
		case <-timeout.C:
			b.t.Fatalf("not in time: %s", what)
		case <-ticks.C:
		}
	}
}

// failPatches answers every patch of a LeaderWorkerSet with what f returns.
func (b *bed) failPatches(f func() error) {
	b.sets.PrependReactor("patch", "leaderworkersets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, f()
	})
}

// writes are what the driver asked of LeaderWorkerSets but to read them, such as "patch vllm".
func (b *bed) writes() []string {
	var all []string
	for _, a := range b.sets.Actions() {
		switch t := a.(type) {
		case clienttesting.PatchAction:
			all = append(all, "patch "+t.GetName())
		case clienttesting.DeleteAction:
			all = append(all, "delete "+t.GetName())
		case clienttesting.CreateAction:
			all = append(all, "create")
		}
	}
	return all
}

// look is what the driver sees of default/vllm.
func (b *bed) look() *Snapshot {
	b.t.Helper()
	s, err := b.engine.Observer.Observe(vllm)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// next is what follows from a look.
func next(t testing.TB, s *Snapshot) plan.Decision {
	t.Helper()
	d, err := plan.Decide(s.Observation, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// inPhase is stableWorkload with a release from revision "old" to "new".
func inPhase(t testing.TB, phase record.Phase) *lws.LeaderWorkerSet {
	t.Helper()
	policy, err := record.EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"25%", "50%", "100%"}})
	if err != nil {
		t.Fatal(err)
	}
	return withRecord(t, stableWorkload(), record.Record{Saved: record.Native(record.Hold()), Release: &record.Release{
		ID: "r1", Policy: policy, StableRevision: "old", UpdateRevision: "new", Phase: phase, StartedAt: noon, PhaseAt: noon,
	}})
}

func withRecord(t testing.TB, w *lws.LeaderWorkerSet, r record.Record) *lws.LeaderWorkerSet {
	t.Helper()
	value, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	w.Annotations[record.RecordAnnotation] = value
	return w
}

// unrecorded is stableWorkload as its user made it: Lockstep has not been near it.
func unrecorded() *lws.LeaderWorkerSet {
	w := stableWorkload()
	delete(w.Annotations, record.RecordAnnotation)
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Native(record.Hold()))
	return w
}

// canaryOf is what the driver adds to a workload for revision "new".
func canaryOf(t testing.TB, stable *lws.LeaderWorkerSet) *lws.LeaderWorkerSet {
	t.Helper()
	c, err := newCanary(&Snapshot{Observation: plan.Observation{Key: KeyOf(stable)}, StableObject: stable}, plan.CreateCanary{
		Name: record.CanaryName(stable.Name, stable.Name, "new"), Revision: "new", Replicas: 1,
		Target: &record.Target{Groups: "25%", At: noon},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.UID, c.Generation = "canary", 1
	return c
}

// says fails the test unless err has all words.
func says(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}
