// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/argoproj/argo-rollouts/pkg/apis/rollouts/v1alpha1"
	"github.com/google/go-cmp/cmp"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const (
	uid   = "0123456789abcdef"
	mine1 = "01234567.2.h2.t2.1" // the first release of the present template
	mine2 = "01234567.2.h2.t2.2" // its retry
	older = "01234567.1.h1.t1.1" // one of the template before
)

// facts are those of a Rollout in the middle of its second template.
func facts(changes ...func(*Facts)) Facts {
	f := Facts{
		Namespace: "ns", Name: "ro", UID: uid, Number: "2", Hash: "h2", Stable: "h1", Current: true, Deadline: endless,
		Template: "t2", First: "t1", Seen: "t2",
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

func owner(name string) func(*pb.BatchContext) { return func(c *pb.BatchContext) { c.Owner = name } }

func template(t string) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.TemplateRevision = t }
}

func settings(changes ...func(*Config)) *Config {
	c := &Config{Workload: "w", Policy: &pb.ReleasePolicy{Batches: []string{"50%", "100%"}}, Steps: map[int]Step{}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func manual(c *Config)        { c.Manual = true }
func waitOnFailure(c *Config) { c.WaitOnFailure = true }

func TestStepper(t *testing.T) {
	t.Parallel()
	weight := int32(20)
	tests := map[string]struct {
		reason  string
		stepper stepper
		context *pb.BatchContext
		want    action
		release string
		says    string
	}{
		"first deployment": {
			"The controller may run a step although nothing is to be released yet.",
			stepper{facts: facts(func(f *Facts) { f.Stable = "" })}, standing(pb.State_STATE_HOLDING, ""), actSucceed, "", "first deployment",
		},
		"rival": {
			"Two Rollouts of one workload: the second one fails with the reason.",
			stepper{facts: facts(func(f *Facts) { f.Rival = "other" })}, standing(pb.State_STATE_HOLDING, ""), actFail, "", "Rollout other",
		},
		"unrecorded template": {
			"Without a revision nothing can be meant.",
			stepper{}, standing(pb.State_STATE_HOLDING, "", template("")), actWait, "", "record the template",
		},
		"begin": {
			"The first step begins the release.",
			stepper{}, standing(pb.State_STATE_HOLDING, ""), actInitialize, mine1, "",
		},
		"begin after another": {
			"The release before is over.",
			stepper{}, standing(pb.State_STATE_COMPLETED, older, func(c *pb.BatchContext) { c.StableRevision, c.UpdateRevision = "t0", "t1" }),
			actInitialize, mine1, "",
		},
		"deadline": {
			"Argo would never run the step again.",
			stepper{facts: facts(func(f *Facts) { f.Deadline = 600 })}, standing(pb.State_STATE_HOLDING, ""), actFail, "", "progressDeadlineSeconds: 2147483647",
		},
		"deadline of nothing": {
			"A Rollout with nothing to release needs no time.",
			stepper{facts: facts(func(f *Facts) { f.Deadline = 600 })},
			standing(pb.State_STATE_HOLDING, "", func(c *pb.BatchContext) { c.StableRevision = "t2" }), actInitialize, mine1, "",
		},
		"retry": {
			"A driver takes no id twice, and no step of this attempt has worked on the release that was rolled back.",
			stepper{}, standing(pb.State_STATE_ROLLED_BACK, mine1), actInitialize, mine2, "",
		},
		"rolled back by others": {
			"A step of this attempt worked on it: a user rolled it back, and a new release would undo that.",
			stepper{facts: facts(func(f *Facts) { f.Begun = []string{mine1} })}, standing(pb.State_STATE_ROLLED_BACK, mine1), actFail, "", "outside of Argo",
		},
		"promoted already": {
			"Steps after the promotion have nothing left to do.",
			stepper{}, standing(pb.State_STATE_COMPLETED, mine1), actSucceed, "", "promoted",
		},
		"nothing": {
			"The groups run the template.",
			stepper{}, standing(pb.State_STATE_NOTHING_TO_RELEASE, mine1, func(c *pb.BatchContext) { c.StableRevision = "t2" }), actSucceed, "", "nothing",
		},
		"someone else's release": {
			"It is not ours to end.",
			stepper{}, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), actFail, "", "lockstep-cli/jo",
		},
		"the older template's release": {
			"A new template in mid-release starts over.",
			stepper{}, standing(pb.State_STATE_READY, older), actRollback, older, "",
		},
		"the older template's release, going": {
			"It is on its way.",
			stepper{}, standing(pb.State_STATE_ROLLING_BACK, older), actWait, "", "end of release",
		},
		"a deleted Rollout's release": {
			"A Rollout of the same name had another uid.",
			stepper{}, standing(pb.State_STATE_READY, "fedcba98.1.h2.t2.1"), actRollback, "fedcba98.1.h2.t2.1", "",
		},
		"edited meanwhile": {
			"The Controller is about to write the new revision into the Rollout.",
			stepper{}, standing(pb.State_STATE_READY, mine1, template("t3")), actWait, "", "new template",
		},
		"undone": {
			"The Rollout asks for an older template than the workload's, which was not edited.",
			stepper{canUndo: true, facts: facts(func(f *Facts) { f.Hash, f.Template = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1, func(c *pb.BatchContext) { c.StableRevision = "t1" }), actUndo, "", "restoring revision t0",
		},
		"undone, without undo": {
			"A driver that can't says so, with the way out.",
			stepper{facts: facts(func(f *Facts) { f.Hash, f.Template = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1), actFail, "", "restore it in Git",
		},
		"upgrade": {
			"The release stands, the step's groups are not asked for yet.",
			stepper{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_HOLDING, mine1), actUpgrade, mine1, "",
		},
		"upgrading": {
			"Asked for once; the driver is at it.",
			stepper{step: Step{Upgrade: "50%"}, targetSet: true}, standing(pb.State_STATE_UPGRADING, mine1), actWait, "", "as it is",
		},
		"upgraded": {
			"Ready is done.",
			stepper{step: Step{Upgrade: "50%"}, targetSet: true}, standing(pb.State_STATE_READY, mine1), actSucceed, "", "",
		},
		"weight after upgrade": {
			"Traffic goes to groups that are ready.",
			stepper{step: Step{Upgrade: "50%", Weight: &weight}, targetSet: true}, standing(pb.State_STATE_READY, mine1), actWeight, mine1, "",
		},
		"weight not there": {
			"The routes do not have it yet.",
			stepper{step: Step{Weight: &weight}, weightSet: true}, standing(pb.State_STATE_READY, mine1), actWait, "", "",
		},
		"weight there": {
			"The routes have it, and the driver has verified it.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_READY, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 20 }), actSucceed, "", "",
		},
		"weight capped": {
			"Too few groups are ready for it, and the driver raises it by itself.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_VERIFYING, mine1, func(c *pb.BatchContext) { c.TrafficWeight, c.Reason = 10, "CapacityBelowShare" }), actWait, "", "",
		},
		"weight capped, groups lost": {
			"The batch is not complete any more.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_UPGRADING, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 10 }), actWait, "", "",
		},
		"weight without a group": {
			"It would wait for ever.",
			stepper{step: Step{Weight: &weight}}, standing(pb.State_STATE_HOLDING, mine1), actFail, "", "no group",
		},
		"headers first": {
			"In the order of the fields.",
			stepper{step: Step{Headers: &[]*pb.HeaderMatch{}, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), actHeaders, mine1, "",
		},
		"mirror": {
			"In the order of the fields.",
			stepper{step: Step{Mirror: &weight, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), actMirror, mine1, "",
		},
		"promote": {
			"Everything before it is done.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_READY, mine1), actPromote, mine1, "",
		},
		"promote waits": {
			"A group that was ready is not any more.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_UPGRADING, mine1), actWait, "", "",
		},
		"promoting": {
			"The step is over when the promotion is.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_PROMOTING, mine1), actWait, "", "promoting",
		},
		"failed": {
			"The Rollout is aborted.",
			stepper{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_FAILED, mine1), actFail, "", "as it is",
		},
		"promoting, only a deletion lasts": {
			"An abort would roll back groups that serve.",
			stepper{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "CleanupDeadlineExceeded" }), actWait, "", "as it is",
		},
		"promoting, an autoscaler has removed groups": {
			"A person scales the workload up again.",
			stepper{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "StableCapacityReduced" }), actWait, "", "as it is",
		},
		"failed, patient": {
			"A person decides.",
			stepper{config: settings(waitOnFailure)}, standing(pb.State_STATE_FAILED, mine1), actWait, "", "",
		},
		"rolling back": {
			"An abort is under way, which Argo is about to tell.",
			stepper{}, standing(pb.State_STATE_ROLLING_BACK, mine1), actWait, "", "",
		},
		"a manual Rollout's workload edited": {
			"No step has seen the new template serve, and Argo does not know of it.",
			stepper{config: settings(manual)}, standing(pb.State_STATE_READY, mine1, template("t3")), actFail, "", "changed during the release",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := test.stepper
			if s.facts.UID == "" {
				s.facts = facts()
			}
			if s.config == nil {
				s.config = settings()
			}
			got := s.next(test.context)
			if got.action != test.want || got.release != test.release || !strings.Contains(got.why, test.says) {
				t.Errorf("%s\ngot %+v, want action %d of %q saying %q", test.reason, got, test.want, test.release, test.says)
			}
			if got.action == actPromote && got.revision != "t2" {
				t.Errorf("promotes revision %q, want only the one that was seen", got.revision)
			}
		})
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	abort := func(f *Facts) { f.Abort = true }
	full := func(f *Facts) { f.PromoteFull = true }
	promoted := func(f *Facts) { f.Stable = "h2" }
	undone := func(f *Facts) { f.Hash, f.Template = "h1", "" }
	stale := func(f *Facts) { f.Current = false }
	tests := map[string]struct {
		reason  string
		facts   Facts
		config  *Config
		context *pb.BatchContext
		want    action
		release string
	}{
		"under way": {"Steps drive it.", facts(), nil, standing(pb.State_STATE_READY, mine1), actWait, ""},
		"aborted":   {"Traffic and capacity go back.", facts(abort), nil, standing(pb.State_STATE_READY, mine1), actRollback, mine1},
		"aborted and failed": {
			"A failed release is what aborts are for.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1), actRollback, mine1,
		},
		"aborted, going back":        {"Once is enough.", facts(abort), nil, standing(pb.State_STATE_ROLLING_BACK, mine1), actWait, ""},
		"aborted, promoting":         {"A promotion is taken back until it is over.", facts(abort), nil, standing(pb.State_STATE_PROMOTING, mine1), actRollback, mine1},
		"aborted, promoting in full": {"Argo has taken the template for stable.", facts(abort, promoted), nil, standing(pb.State_STATE_PROMOTING, mine1), actWait, ""},
		"aborted, over":              {"Nothing to roll back.", facts(abort), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), actWait, ""},
		"aborted, someone else's": {
			"It is not ours to end.", facts(abort), nil, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), actWait, "",
		},
		"promote --full":  {"Between steps no step is called for it.", facts(full), nil, standing(pb.State_STATE_READY, mine1), actPromote, mine1},
		"promoted":        {"The last step was no promotion.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1), actPromote, mine1},
		"promoted, stale": {"The status is of an older spec.", facts(promoted, stale), nil, standing(pb.State_STATE_READY, mine1), actWait, ""},
		"promoted, new template": {
			"No step has seen t3 serve.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1, template("t3")), actWait, "",
		},
		"undone to stable": {
			"Argo is back at its stable template at once: that is no promotion.",
			facts(undone), nil, standing(pb.State_STATE_READY, mine1), actRollback, mine1,
		},
		"undone to stable, over": {
			"And the workload's template, still the new one, is not to be promoted for it.",
			facts(undone), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), actWait, "",
		},
		"another template":        {"The steps that follow begin anew.", facts(), nil, standing(pb.State_STATE_READY, older), actRollback, older},
		"another template, stale": {"Not before Argo knows.", facts(stale), nil, standing(pb.State_STATE_READY, older), actWait, ""},
		"at rest":                 {"All runs as it should.", facts(promoted), nil, standing(pb.State_STATE_COMPLETED, mine1), actWait, ""},
		"promoted before the first step": {
			"promote --full in a pause that comes first.", facts(promoted), nil, standing(pb.State_STATE_HOLDING, "", owner("")), actInitialize, mine1,
		},
		"promoted after an abort": {
			"The retry is a new release.", facts(promoted), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), actInitialize, mine2,
		},
		"first deployment over a waiting template": {
			"What waited before the Rollout was there goes through the steps.",
			facts(func(f *Facts) { f.Hash, f.Stable, f.Template, f.Number, f.First = "h1", "h1", "", "1", "t2" }), nil,
			standing(pb.State_STATE_HOLDING, "", owner("")), actWait, "",
		},
		"rival": {
			"The second Rollout begins nothing.", facts(promoted, func(f *Facts) { f.Rival = "x" }), nil,
			standing(pb.State_STATE_HOLDING, "", owner("")), actWait, "",
		},
		"manual, promoted, new template waits": {
			"Nothing says that Argo means it.", facts(promoted), settings(manual), standing(pb.State_STATE_HOLDING, "", owner("")), actWait, "",
		},
		"manual, promote --full": {
			"Now it does.", facts(full), settings(manual), standing(pb.State_STATE_HOLDING, "", owner("")), actInitialize, mine1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := test.config
			if config == nil {
				config = settings()
			}
			got := settle(test.facts, config, test.context)
			if got.action != test.want || got.release != test.release {
				t.Errorf("%s\ngot %+v, want action %d of %q", test.reason, got, test.want, test.release)
			}
			if got.action == actPromote && got.revision != "t2" {
				t.Errorf("promotes revision %q, want only the one that was seen", got.revision)
			}
		})
	}
}

func TestMark(t *testing.T) {
	t.Parallel()
	rest := func(changes ...func(*pb.BatchContext)) *pb.BatchContext {
		return standing(pb.State_STATE_HOLDING, "", changes...)
	}
	none := func(f *Facts) { f.Template, f.First, f.Seen = "", "", "" }
	settled := func(c *pb.BatchContext) { c.StableRevision, c.TemplateRevision = "t1", "t1" }
	tests := map[string]struct {
		reason  string
		facts   Facts
		context *pb.BatchContext
		want    revisions
	}{
		"first look": {
			"The pod template stays as it is, so that nothing starts.",
			facts(none), rest(settled), revisions{first: "t1", seen: "t1"},
		},
		"first look at a waiting template": {
			"What waits is released through the steps.",
			facts(none), rest(), revisions{template: "t2", first: "t1", seen: "t2"},
		},
		"edit": {
			"The workload's template is neither what the Rollout asks for nor what was seen last.",
			facts(), rest(template("t3")), revisions{template: "t3", first: "t1", seen: "t3"},
		},
		"edit back to the first": {
			"The pod template must be the one without the annotation, which Argo knows as stable.",
			facts(), rest(template("t1")), revisions{first: "t1", seen: "t1"},
		},
		"undo": {
			"The Rollout's template changed, the workload's did not: it is for the step to bring it back.",
			facts(func(f *Facts) { f.Template = "t0" }), rest(), revisions{},
		},
		"undo done": {
			"From now on this is the template that is known.",
			facts(func(f *Facts) { f.Template = "t0" }), rest(template("t0")), revisions{template: "t0", first: "t1", seen: "t0"},
		},
		"edit after an undo that failed": {
			"The last change wins.",
			facts(func(f *Facts) { f.Template = "t0" }), rest(template("t3")), revisions{template: "t3", first: "t1", seen: "t3"},
		},
		"unrecorded": {"Nothing is known yet.", facts(none), rest(template("")), revisions{}},
		"at rest":    {"Nothing to write.", facts(), rest(), revisions{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := trackRevisions(test.facts, test.context).revisions; got != test.want {
				t.Errorf("%s\ngot %+v, want %+v", test.reason, got, test.want)
			}
		})
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
			Facts{ResourceVersion: "7", Template: "b", OnlyAnnotation: true}, revisions{first: "a", seen: "a"},
			`{"metadata":{"annotations":{"lockstep.dev/first-revision":"a","lockstep.dev/seen-revision":"a"},"resourceVersion":"7"},` +
				`"spec":{"template":{"metadata":{"annotations":null}}}}`,
		},
		"others stay": {
			Facts{ResourceVersion: "7", Template: "b"}, revisions{first: "a", seen: "a"},
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

func TestPlan(t *testing.T) {
	t.Parallel()
	promoted := func(f *Facts) { f.Stable = "h2" }
	atRest := func(c *pb.BatchContext) { c.StableRevision, c.UpdateRevision = "t2", "t2" }
	tests := map[string]struct {
		reason  string
		facts   Facts
		config  *Config
		context *pb.BatchContext
		undo    bool
		want    action
	}{
		"unmanaged": {"It is held from the moment both exist.", facts(promoted), nil, standing(pb.State_STATE_UNMANAGED, ""), false, actAdopt},
		"unmanaged, rival": {
			"By the first of them.", facts(func(f *Facts) { f.Rival = "x" }), nil, standing(pb.State_STATE_UNMANAGED, ""), false, actWait,
		},
		"unowned": {"So that a deletion is noticed although no Controller ran.", facts(promoted), nil, standing(pb.State_STATE_HOLDING, "", atRest), false, actRegister},
		"owned": {
			"All is as it should be.", facts(promoted), nil,
			standing(pb.State_STATE_NOTHING_TO_RELEASE, "01234567.1.adopted.t2.1", atRest), false, actWait,
		},
		"aborted first": {
			"Ends come before everything else.", facts(func(f *Facts) { f.Abort = true }), nil,
			standing(pb.State_STATE_READY, mine1, template("t3")), false, actRollback,
		},
		"edited":         {"The Rollout is to start.", facts(), nil, standing(pb.State_STATE_COMPLETED, older, template("t3")), false, actAnnotate},
		"edited, manual": {"It is not.", facts(), settings(manual), standing(pb.State_STATE_COMPLETED, older, template("t3")), false, actWait},
		"undone to stable": {
			"Argo went back without a step.", facts(func(f *Facts) { f.Hash, f.Template, f.Number = "h1", "t1", "3" }), nil,
			standing(pb.State_STATE_ROLLED_BACK, mine1), true, actUndo,
		},
		"undone to stable, without undo": {
			"The stable groups are right all the same.", facts(func(f *Facts) { f.Hash, f.Template, f.Number = "h1", "t1", "3" }), nil,
			standing(pb.State_STATE_ROLLED_BACK, mine1), false, actWait,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := test.config
			if config == nil {
				config = settings()
			}
			if got := plan(test.facts, config, test.context, test.undo); got.action != test.want {
				t.Errorf("%s\ngot %+v, want action %d", test.reason, got, test.want)
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

func TestID(t *testing.T) {
	t.Parallel()
	id := facts().id("t2", 3)
	if got, ok := ParseID(id.String()); !ok || got != id {
		t.Errorf("got %+v, %v, want %+v", got, ok, id)
	}
	for _, s := range []string{"", "a.b.c.d", "a.b.c.d.0", "a.b.c.d.x", "20261121-120000-abcd", "a.b.c.d.1.1"} {
		if got, ok := ParseID(s); ok {
			t.Errorf("%q was taken for %+v", s, got)
		}
	}
	long := ID{Rollout: "01234567", Number: "1000", Hash: "7c9f8d6b5f4", Revision: "7c9f8d6b5f4", Attempt: 100}
	if n := len(long.String()); n > 63 {
		t.Errorf("an id of %d characters is too long", n)
	}
}
