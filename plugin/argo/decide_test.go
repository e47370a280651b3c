// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	uid   = "0123456789abcdef"
	mine1 = "01234567.2.h2.t2.1" // the first release of the present template
	older = "01234567.1.h1.t1.1" // one of the template before
)

// facts are those of a Rollout in the middle of its second template.
func facts(changes ...func(*Facts)) Facts {
	f := Facts{
		Noted:     revisions{template: "t2", first: "t1", seen: "t2", canary: "t2", stable: "t1"},
		Namespace: "ns", Name: "ro", UID: uid, Owner: "argo-rollouts/ns/ro", Retry: "retry it", Number: "2", Hash: "h2", Stable: "h1",
		Current: true, Wanted: "t2",
	}
	for _, change := range changes {
		change(&f)
	}
	return f
}

// standing is where the workload stands: the groups run t1, the template is t2.
func standing(state pb.State, release string, changes ...func(*pb.BatchContext)) *pb.BatchContext {
	c := &pb.BatchContext{
		State: state, ReleaseId: release, Owner: "argo-rollouts/ns/ro", Message: "as it is",
		StableRevision: "t1", UpdateRevision: "t2", TemplateRevision: "t2",
	}
	if release == "" {
		c.Owner = ""
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func settings(changes ...func(*Config)) *Config {
	c := &Config{Workload: "w", Policy: &pb.ReleasePolicy{Batches: []string{"50%", "100%"}}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func TestRevisionsPatch(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		facts     Facts
		revisions revisions
		want      string
	}{
		"the template stays": {
			Facts{ResourceVersion: "7"}, revisions{first: "a", seen: "a"},
			`{"metadata":{"annotations":{"lockstep.dev/first-revision":"a","lockstep.dev/seen-revision":"a"},"resourceVersion":"7"}}`,
		},
		"the template changes": {
			Facts{ResourceVersion: "7"}, revisions{template: "b", first: "a", seen: "b"},
			`{"metadata":{"annotations":{"lockstep.dev/first-revision":"a","lockstep.dev/seen-revision":"b"},"resourceVersion":"7"},` +
				`"spec":{"template":{"metadata":{"annotations":{"lockstep.dev/revision":"b"}}}}}`,
		},
		"no empty map stays behind": {
			Facts{ResourceVersion: "7", Noted: revisions{template: "b"}, OnlyAnnotation: true}, revisions{first: "a", seen: "a"},
			`{"metadata":{"annotations":{"lockstep.dev/first-revision":"a","lockstep.dev/seen-revision":"a"},"resourceVersion":"7"},` +
				`"spec":{"template":{"metadata":{"annotations":null}}}}`,
		},
		"others stay": {
			Facts{ResourceVersion: "7", Noted: revisions{template: "b"}}, revisions{first: "a", seen: "a"},
			`{"metadata":{"annotations":{"lockstep.dev/first-revision":"a","lockstep.dev/seen-revision":"a"},"resourceVersion":"7"},` +
				`"spec":{"template":{"metadata":{"annotations":{"lockstep.dev/revision":null}}}}}`,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Empty(t, cmp.Diff(test.want, string(test.revisions.patch(test.facts))), "-want +got")
		})
	}
}

// undoes is a driver of which only the capability is asked for.
type undoes struct {
	Driver
	can bool
}

func (u undoes) Has(pb.Capability) bool { return u.can }

func TestBegun(t *testing.T) {
	t.Parallel()
	run := func(index int32, name, status string) v1alpha1.StepPluginStatus {
		return v1alpha1.StepPluginStatus{Index: index, Name: name, Operation: v1alpha1.StepPluginOperationRun, Status: json.RawMessage(status)}
	}
	status := v1alpha1.RolloutStatus{}
	status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{
		run(0, PluginName, `{"release":"a"}`), run(3, "other", `{"release":"c"}`), run(4, PluginName, `garbage`),
	}
	assert.Empty(t, cmp.Diff([]string{"a"}, begunReleases(&status)), "-want +got")
	// Argo aborts no step in phase Error, and sends it again with the first call of the retry.
	status.Canary.StepPluginStatuses[0].Phase = v1alpha1.StepPluginPhaseError
	status.AbortedAt = &metav1.Time{Time: time.Now()}
	got := begunReleases(&status)
	assert.Nil(t, got, "the first call of a retry has begun %v", got)
}

// unreached is a driver that does not answer. The second call ends the caller's context.
type unreached struct {
	Driver

	calls int
	end   context.CancelFunc
}

func (*unreached) Has(pb.Capability) bool { return true }

func (u *unreached) Call(context.Context, proto.Message) (*pb.BatchContext, error) {
	if u.calls++; u.calls > 1 {
		u.end()
	}
	return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "no driver")
}

// Argo ends a promotion only once the driver has it: afterwards nothing tells it from a first deployment. A driver that does not answer is asked
// once, so that the workers of Argo's controller stay free: it calls again.
func TestRouterHoldsArgoUntilThePromotionIsRecorded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*Facts)
		want   bool
	}{
		"promote --full":   {func(f *Facts) { f.PromoteFull = true }, true},
		"all steps done":   {func(f *Facts) { f.StepsDone = true }, true},
		"aborted":          {func(f *Facts) { f.Abort = true }, true},
		"in a step":        {func(*Facts) {}, false},
		"promoted already": {func(f *Facts) { f.StepsDone, f.Stable = true, f.Hash }, false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		driver := &unreached{end: cancel}
		router := &Plugin{Driver: driver, Logger: slog.New(slog.DiscardHandler), Context: ctx}
		_, err := router.reconcileEnd(ctx, NewTarget(driver, facts(test.change), settings()))
		assert.True(t, (err != nil) == test.want && driver.calls == 1, "%s: error %v, want one %v; %d calls", name, err, test.want, driver.calls)
	}
}

func TestFactsOfAnInvalidRollout(t *testing.T) {
	t.Parallel()
	ro := &v1alpha1.Rollout{Status: v1alpha1.RolloutStatus{ObservedGeneration: "0"}}
	assert.True(t, ReadFacts(ro).Current, "its status is current")
	ro.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{{Name: PluginName}, {Name: "other", Disabled: true}}
	assert.False(t, ReadFacts(ro).Skipped, "the step of another plugin was skipped, not its own")
	ro.Status.Canary.StepPluginStatuses[0].Disabled = true
	assert.True(t, ReadFacts(ro).Skipped, "its step was skipped")
	ro.Status.Conditions = []v1alpha1.RolloutCondition{{Type: v1alpha1.InvalidSpec, Status: "True"}}
	f := ReadFacts(ro)
	assert.True(t, !f.Current && f.Observed, "Argo can't process its spec, and its status counts as current")
}
