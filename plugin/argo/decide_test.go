// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

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

func template(t string) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.TemplateRevision = t }
}

func settings(changes ...func(*Config)) *Config {
	c := &Config{Workload: "w", Policy: &pb.ReleasePolicy{Batches: []string{"50%", "100%"}}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func TestMark(t *testing.T) {
	t.Parallel()
	rest := func(changes ...func(*pb.BatchContext)) *pb.BatchContext {
		return standing(pb.State_STATE_HOLDING, "", changes...)
	}
	none := func(f *Facts) { f.Noted = revisions{} }
	settled := func(c *pb.BatchContext) { c.StableRevision, c.TemplateRevision = "t1", "t1" }
	tests := map[string]struct {
		reason  string
		facts   Facts
		context *pb.BatchContext
		want    revisions
	}{
		"first look": {
			"The pod template stays as it is, so that nothing starts.",
			facts(none), rest(settled), revisions{first: "t1", seen: "t1", canary: "t1", stable: "t1"},
		},
		"first look at a waiting template": {
			"What waits is released through the steps.",
			facts(none), rest(), revisions{template: "t2", first: "t1", seen: "t2", canary: "t2", stable: "t1"},
		},
		"edit": {
			"The workload's template is neither what the Rollout asks for nor what was seen last.",
			facts(), rest(template("t3")), revisions{template: "t3", first: "t1", seen: "t3", canary: "t3", stable: "t1"},
		},
		"edit back to the first": {
			"The pod template must be the one without the annotation, which Argo knows as stable.",
			facts(), rest(template("t1")), revisions{first: "t1", seen: "t1", canary: "t1", stable: "t1"},
		},
		"undo": {
			"The Rollout's template changed, the workload's did not: it is for the step to bring it back.",
			facts(func(f *Facts) { f.Noted.template = "t0" }), rest(), revisions{},
		},
		"not deployed yet": {
			"Argo takes its first template for the one that runs: what waits must not be in it.",
			facts(none, func(f *Facts) { f.Stable, f.Hash = "", "" }), rest(), revisions{first: "t1", canary: "t2", stable: "t1"},
		},
		"considered stable, and never released": {
			"Nothing asked for it: the Rollout starts over.",
			facts(func(f *Facts) { f.Stable = "h2" }), rest(), revisions{template: "t2.2", first: "t1", seen: "t2", canary: "t2", stable: "t1"},
		},
		"the same again": {
			"Each start is another template to Argo.",
			facts(func(f *Facts) { f.Stable, f.Noted.template = "h2", "t2.2" }), rest(), revisions{template: "t2.3", first: "t1", seen: "t2", canary: "t2", stable: "t1"},
		},
		"considered stable, of an older template": {
			"Argo has not processed the present one.", facts(func(f *Facts) { f.Stable, f.Current = "h2", false }), rest(), revisions{},
		},
		"considered stable, rolled back": {
			"An abort is not undone.", facts(func(f *Facts) { f.Stable = "h2" }), standing(pb.State_STATE_ROLLED_BACK, mine1), revisions{},
		},
		"undo done": {
			"From now on this is the template that is known.",
			facts(func(f *Facts) { f.Noted.template = "t0" }), rest(template("t0")), revisions{template: "t0", first: "t1", seen: "t0", canary: "t0", stable: "t1"},
		},
		"edit after an undo that failed": {
			"The last change wins.",
			facts(func(f *Facts) { f.Noted.template = "t0" }), rest(template("t3")), revisions{template: "t3", first: "t1", seen: "t3", canary: "t3", stable: "t1"},
		},
		"unrecorded": {"Nothing is known yet.", facts(none), rest(template("")), revisions{}},
		"at rest":    {"Nothing to write.", facts(), rest(), revisions{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := trackRevisions(test.facts, test.context).annotate; test.want == (revisions{}) != (got == nil) || got != nil && *got != test.want {
				t.Errorf("%s\ngot %+v, want %+v", test.reason, got, test.want)
			}
		})
	}
}

// A Rollout whose pod template is another object's is not started by an edit.
func TestReferencedTemplateIsNotStarted(t *testing.T) {
	t.Parallel()
	got := trackRevisions(facts(func(f *Facts) { f.Referenced = true }), standing(pb.State_STATE_COMPLETED, older, template("t3"))).annotate
	if want := (revisions{template: "t2", first: "t1", seen: "t2", canary: "t3", stable: "t2"}); got == nil || *got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
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
			if diff := cmp.Diff(test.want, string(test.revisions.patch(test.facts))); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// undoes is a driver of which only the capability is asked for.
type undoes struct {
	Driver
	can bool
}

func (u undoes) Has(pb.Capability) bool { return u.can }

func TestPlan(t *testing.T) {
	t.Parallel()
	promoted := func(f *Facts) { f.Stable = "h2" }
	skipped := func(f *Facts) { f.Skipped, f.Progressed, f.StepsDone = true, true, true }
	atRest := func(c *pb.BatchContext) { c.StableRevision, c.UpdateRevision = "t2", "t2" }
	annotates := &pb.BatchContext{} // stands for annotations in place of a request
	tests := map[string]struct {
		reason  string
		facts   Facts
		config  *Config
		context *pb.BatchContext
		undo    bool
		want    proto.Message // nil: none, and no annotations either; annotates: those
	}{
		"unmanaged": {"It is held from the moment both exist.", facts(promoted), nil, standing(pb.State_STATE_UNMANAGED, ""), false, &pb.AdoptRequest{}},
		"unmanaged, rival": {
			"By the first of them.", facts(func(f *Facts) { f.Rival = "x" }), nil, standing(pb.State_STATE_UNMANAGED, ""), false, nil,
		},
		"unowned": {"So that a deletion is noticed although no Controller ran.", facts(promoted), nil, standing(pb.State_STATE_HOLDING, "", atRest), false, &pb.InitializeRequest{}},
		"owned": {
			"All is as it should be.", facts(promoted, func(f *Facts) { f.Noted.stable = "t2" }), nil,
			standing(pb.State_STATE_NOTHING_TO_RELEASE, "01234567.1.adopted.t2.1", atRest), false, nil,
		},
		"aborted first": {
			"Ends come before everything else.", facts(func(f *Facts) { f.Abort = true }), nil,
			standing(pb.State_STATE_READY, mine1, template("t3")), false, &pb.FinalizeRequest{},
		},
		"steps skipped": {
			"Argo's ConfigMap disables the plugin.", facts(promoted, skipped), nil, standing(pb.State_STATE_HOLDING, ""), false, nil,
		},
		"steps skipped, promoted in full": {
			"Its user asks for it.", facts(skipped, func(f *Facts) { f.PromoteFull = true }), nil, standing(pb.State_STATE_HOLDING, ""), false, &pb.InitializeRequest{},
		},
		"edited": {"The Rollout is to start.", facts(), nil, standing(pb.State_STATE_COMPLETED, older, template("t3")), false, annotates},
		"undone to stable": {
			"Argo went back without a step.", facts(func(f *Facts) { f.Hash, f.Noted.template, f.Wanted, f.Number = "h1", "t1", "t1", "3" }), nil,
			standing(pb.State_STATE_ROLLED_BACK, mine1), true, &pb.UndoRequest{},
		},
		"undone to stable, without undo": {
			"The stable groups are right all the same.", facts(func(f *Facts) { f.Hash, f.Noted.template, f.Wanted, f.Number = "h1", "t1", "t1", "3" }), nil,
			standing(pb.State_STATE_ROLLED_BACK, mine1), false, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := test.config
			if config == nil {
				config = settings()
			}
			got := plan(NewTarget(undoes{can: test.undo}, test.facts, config), test.context)
			request := got.Request
			if got.annotate != nil {
				request = annotates
			}
			if fmt.Sprintf("%T", request) != fmt.Sprintf("%T", test.want) {
				t.Errorf("%s\ngot %T (%s), want %T", test.reason, request, got.Why, test.want)
			}
		})
	}
}

func TestBegun(t *testing.T) {
	t.Parallel()
	status := func(index int32, operation v1alpha1.StepPluginOperation, release string) v1alpha1.StepPluginStatus {
		return v1alpha1.StepPluginStatus{
			Index: index, Name: PluginName, Operation: operation, Status: json.RawMessage(`{"release":"` + release + `"}`),
		}
	}
	got := begun([]v1alpha1.StepPluginStatus{
		status(0, v1alpha1.StepPluginOperationRun, "a"),
		status(2, v1alpha1.StepPluginOperationRun, "b"),
		status(2, v1alpha1.StepPluginOperationAbort, ""),
		{Index: 3, Name: "other", Operation: v1alpha1.StepPluginOperationRun, Status: json.RawMessage(`{"release":"c"}`)},
		{Index: 4, Name: PluginName, Operation: v1alpha1.StepPluginOperationRun, Status: json.RawMessage(`garbage`)},
	})
	if diff := cmp.Diff([]string{"a"}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// unreached is a driver that does not answer.
type unreached struct{ Driver }

func (unreached) Has(pb.Capability) bool { return true }

func (unreached) Call(context.Context, proto.Message) (*pb.BatchContext, error) {
	return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "no driver")
}

// Argo ends a promotion only once the driver has it: afterwards nothing tells it from a first deployment.
func TestRouterHoldsArgoUntilThePromotionIsRecorded(t *testing.T) {
	t.Parallel()
	done, cancel := context.WithCancel(t.Context())
	cancel()
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
		router := &Plugin{Driver: unreached{}, Logger: slog.New(slog.DiscardHandler), Context: done}
		_, err := router.reconcileEnd(done, NewTarget(unreached{}, facts(test.change), settings()))
		if (err != nil) != test.want {
			t.Errorf("%s: error %v, want one %v", name, err, test.want)
		}
	}
}

func TestFactsOfAnInvalidRollout(t *testing.T) {
	t.Parallel()
	ro := &v1alpha1.Rollout{Status: v1alpha1.RolloutStatus{ObservedGeneration: "0"}}
	if f := ReadFacts(ro); !f.Current {
		t.Error("its status is current")
	}
	ro.Status.Canary.StepPluginStatuses = []v1alpha1.StepPluginStatus{{Name: PluginName}, {Name: "other", Disabled: true}}
	if ReadFacts(ro).Skipped {
		t.Error("the step of another plugin was skipped, not its own")
	}
	if ro.Status.Canary.StepPluginStatuses[0].Disabled = true; !ReadFacts(ro).Skipped {
		t.Error("its step was skipped")
	}
	ro.Status.Conditions = []v1alpha1.RolloutCondition{{Type: v1alpha1.InvalidSpec, Status: "True"}}
	if f := ReadFacts(ro); f.Current || !f.Observed {
		t.Error("Argo can't process its spec, and its status counts as current")
	}
}

func TestHeldFor(t *testing.T) {
	t.Parallel()
	stable := func(f *Facts) { f.Observed, f.Stable = true, f.Hash }
	stale := func(f *Facts) { f.Current = false }
	for name, test := range map[string]struct {
		facts   Facts
		context *pb.BatchContext
		says    string
	}{
		"in progress":           {facts(func(f *Facts) { f.Observed = true }), standing(pb.State_STATE_HOLDING, ""), ""},
		"in flight":             {facts(stable, stale), standing(pb.State_STATE_READY, mine1), ""},
		"nothing waits":         {facts(stable, stale), standing(pb.State_STATE_HOLDING, "", template("t1")), ""},
		"not observed yet":      {facts(stable, stale, func(f *Facts) { f.Observed = false }), standing(pb.State_STATE_HOLDING, ""), ""},
		"invalid, and the like": {facts(stable, stale), standing(pb.State_STATE_HOLDING, ""), "Argo has not processed"},
		"disabled":              {facts(stable, func(f *Facts) { f.Skipped = true }), standing(pb.State_STATE_HOLDING, ""), "argo-rollouts-config disables"},
		"rolled back":           {facts(stable), standing(pb.State_STATE_ROLLED_BACK, mine1), "was rolled back"},
	} {
		if got := heldFor(test.facts, test.context); (got != "") != (test.says != "") || !strings.Contains(got, test.says) {
			t.Errorf("%s: %q, want it to say %q", name, got, test.says)
		}
	}
}
