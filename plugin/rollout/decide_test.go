// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"errors"
	"strings"
	"testing"

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
		Namespace: "ns", Name: "ro", UID: uid, Owner: "argo-rollouts/ns/ro", Retry: "retry it", Number: "2", Hash: "h2", Stable: "h1",
		Current: true, Wanted: "t2", Seen: "t2",
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

func intends(intent pb.FinalizeIntent) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.Intent = intent }
}

func settings(changes ...func(*Config)) *Config {
	c := &Config{Workload: "w", Policy: &pb.ReleasePolicy{Batches: []string{"50%", "100%"}}}
	for _, change := range changes {
		change(c)
	}
	return c
}

func manual(c *Config)        { c.Manual = true }
func waitOnFailure(c *Config) { c.WaitOnFailure = true }
func unfit(c *Config)         { c.Unfit = errors.New("the deadline is too short") }

func TestStepper(t *testing.T) {
	t.Parallel()
	weight := int32(20)
	tests := map[string]struct {
		reason  string
		stepper stepper
		context *pb.BatchContext
		want    Action
		release string
		says    string
	}{
		"first deployment": {
			"The controller may run a step although nothing is to be released yet.",
			stepper{facts: facts(func(f *Facts) { f.Stable = "" })}, standing(pb.State_STATE_HOLDING, ""), ActSucceed, "", "first deployment",
		},
		"rival": {
			"Two Rollouts of one workload: the second one fails with the reason.",
			stepper{facts: facts(func(f *Facts) { f.Rival = "other" })}, standing(pb.State_STATE_HOLDING, ""), ActFail, "", "Rollout other",
		},
		"unrecorded template": {
			"Without a revision nothing can be meant.",
			stepper{}, standing(pb.State_STATE_HOLDING, "", template("")), ActWait, "", "record the template",
		},
		"begin": {
			"The first step begins the release.",
			stepper{}, standing(pb.State_STATE_HOLDING, ""), ActInitialize, mine1, "",
		},
		"begin after another": {
			"The release before is over.",
			stepper{}, standing(pb.State_STATE_COMPLETED, older, func(c *pb.BatchContext) { c.StableRevision, c.UpdateRevision = "t0", "t1" }),
			ActInitialize, mine1, "",
		},
		"deadline": {
			"Argo would never run the step again.",
			stepper{config: settings(unfit)}, standing(pb.State_STATE_HOLDING, ""), ActFail, "", "too short",
		},
		"deadline of nothing": {
			"A Rollout with nothing to release needs no time.",
			stepper{config: settings(unfit)},
			standing(pb.State_STATE_HOLDING, "", func(c *pb.BatchContext) { c.StableRevision = "t2" }), ActInitialize, mine1, "",
		},
		"retry": {
			"A driver takes no id twice, and no step of this attempt has worked on the release that was rolled back.",
			stepper{}, standing(pb.State_STATE_ROLLED_BACK, mine1), ActInitialize, mine2, "",
		},
		"rolled back by others": {
			"A step of this attempt worked on it: a user rolled it back, and a new release would undo that.",
			stepper{facts: facts(func(f *Facts) { f.Begun = []string{mine1} })}, standing(pb.State_STATE_ROLLED_BACK, mine1), ActFail, "", "outside of this Rollout",
		},
		"promoted already": {
			"Steps after the promotion have nothing left to do.",
			stepper{}, standing(pb.State_STATE_COMPLETED, mine1), ActSucceed, "", "promoted",
		},
		"nothing": {
			"The groups run the template.",
			stepper{}, standing(pb.State_STATE_NOTHING_TO_RELEASE, mine1, func(c *pb.BatchContext) { c.StableRevision = "t2" }), ActSucceed, "", "nothing",
		},
		"someone else's release": {
			"It is not ours to end.",
			stepper{}, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), ActFail, "", "lockstep-cli/jo",
		},
		"the older template's release": {
			"A new template in mid-release starts over.",
			stepper{}, standing(pb.State_STATE_READY, older), ActRollback, older, "",
		},
		"the older template's release, going": {
			"It is on its way.",
			stepper{}, standing(pb.State_STATE_ROLLING_BACK, older), ActWait, "", "end of release",
		},
		"the older template's release, whose rollback failed": {
			"It was requested once.",
			stepper{}, standing(pb.State_STATE_FAILED, older, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), ActWait, "", "end of release",
		},
		"the older template's release, whose promotion failed": {
			"It goes back.",
			stepper{}, standing(pb.State_STATE_FAILED, older, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), ActRollback, older, "",
		},
		"a deleted Rollout's release": {
			"A Rollout of the same name had another uid.",
			stepper{}, standing(pb.State_STATE_READY, "fedcba98.1.h2.t2.1"), ActRollback, "fedcba98.1.h2.t2.1", "",
		},
		"edited meanwhile": {
			"The Controller is about to write the new revision into the Rollout.",
			stepper{}, standing(pb.State_STATE_READY, mine1, template("t3")), ActWait, "", "new template",
		},
		"undone": {
			"The Rollout asks for an older template than the workload's, which was not edited.",
			stepper{canUndo: true, facts: facts(func(f *Facts) { f.Hash, f.Wanted = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1, func(c *pb.BatchContext) { c.StableRevision = "t1" }), ActUndo, "", "restoring revision t0",
		},
		"undone, without undo": {
			"A driver that can't says so, with the way out.",
			stepper{facts: facts(func(f *Facts) { f.Hash, f.Wanted = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1), ActFail, "", "restore it in Git",
		},
		"upgrade": {
			"The release stands, the step's groups are not asked for yet.",
			stepper{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_HOLDING, mine1), ActUpgrade, mine1, "",
		},
		"upgrading": {
			"Asked for once; the driver is at it.",
			stepper{step: Step{Upgrade: "50%"}, targetSet: true}, standing(pb.State_STATE_UPGRADING, mine1), ActWait, "", "as it is",
		},
		"upgraded": {
			"Ready is done.",
			stepper{step: Step{Upgrade: "50%"}, targetSet: true}, standing(pb.State_STATE_READY, mine1), ActSucceed, "", "",
		},
		"weight after upgrade": {
			"Traffic goes to groups that are ready.",
			stepper{step: Step{Upgrade: "50%", Weight: &weight}, targetSet: true}, standing(pb.State_STATE_READY, mine1), ActWeight, mine1, "",
		},
		"weight not there": {
			"The routes do not have it yet.",
			stepper{step: Step{Weight: &weight}, weightSet: true}, standing(pb.State_STATE_READY, mine1), ActWait, "", "",
		},
		"weight there": {
			"The routes have it, and the driver has verified it.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_READY, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 20 }), ActSucceed, "", "",
		},
		"weight capped": {
			"Too few groups are ready for it, and the driver raises it by itself.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_VERIFYING, mine1, func(c *pb.BatchContext) { c.TrafficWeight, c.Reason = 10, "CapacityBelowShare" }), ActWait, "", "",
		},
		"weight capped, groups lost": {
			"The batch is not complete any more.",
			stepper{step: Step{Weight: &weight}, weightSet: true},
			standing(pb.State_STATE_UPGRADING, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 10 }), ActWait, "", "",
		},
		"weight without a group": {
			"It would wait for ever.",
			stepper{step: Step{Weight: &weight}}, standing(pb.State_STATE_HOLDING, mine1), ActFail, "", "no group",
		},
		"headers first": {
			"In the order of the fields.",
			stepper{step: Step{Headers: &[]*pb.HeaderMatch{}, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), ActHeaders, mine1, "",
		},
		"mirror": {
			"In the order of the fields.",
			stepper{step: Step{Mirror: &weight, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), ActMirror, mine1, "",
		},
		"promote": {
			"Everything before it is done.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_READY, mine1), ActPromote, mine1, "",
		},
		"promote waits": {
			"A group that was ready is not any more.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_UPGRADING, mine1), ActWait, "", "",
		},
		"promoting": {
			"The step is over when the promotion is.",
			stepper{step: Step{Promote: true}}, standing(pb.State_STATE_PROMOTING, mine1), ActWait, "", "promoting",
		},
		"failed": {
			"The Rollout is aborted.",
			stepper{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_FAILED, mine1), ActFail, "", "as it is",
		},
		"promoting, only a deletion lasts": {
			"An abort would roll back groups that serve.",
			stepper{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "CleanupDeadlineExceeded" }), ActWait, "", "as it is",
		},
		"promoting, an autoscaler has removed groups": {
			"A person scales the workload up again.",
			stepper{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "StableCapacityReduced" }), ActWait, "", "as it is",
		},
		"failed, patient": {
			"A person decides.",
			stepper{config: settings(waitOnFailure)}, standing(pb.State_STATE_FAILED, mine1), ActWait, "", "",
		},
		"rolling back": {
			"An abort is under way, which Argo is about to tell.",
			stepper{}, standing(pb.State_STATE_ROLLING_BACK, mine1), ActWait, "", "",
		},
		"a manual Rollout's workload edited": {
			"No step has seen the new template serve, and Argo does not know of it.",
			stepper{config: settings(manual)}, standing(pb.State_STATE_READY, mine1, template("t3")), ActFail, "", "changed during the release",
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
			if got.Action != test.want || got.Release != test.release || !strings.Contains(got.Why, test.says) {
				t.Errorf("%s\ngot %+v, want action %d of %q saying %q", test.reason, got, test.want, test.release, test.says)
			}
			if got.Action == ActPromote && got.Revision != "t2" {
				t.Errorf("promotes revision %q, want only the one that was seen", got.Revision)
			}
		})
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	abort := func(f *Facts) { f.Abort = true }
	full := func(f *Facts) { f.PromoteFull = true }
	promoted := func(f *Facts) { f.Stable = "h2" }
	undone := func(f *Facts) { f.Hash, f.Wanted = "h1", "t1" }
	stale := func(f *Facts) { f.Current = false }
	tests := map[string]struct {
		reason  string
		facts   Facts
		config  *Config
		context *pb.BatchContext
		want    Action
		release string
	}{
		"under way": {"Steps drive it.", facts(), nil, standing(pb.State_STATE_READY, mine1), ActWait, ""},
		"aborted":   {"Traffic and capacity go back.", facts(abort), nil, standing(pb.State_STATE_READY, mine1), ActRollback, mine1},
		"aborted and failed": {
			"A failed release is what aborts are for.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1), ActRollback, mine1,
		},
		"aborted, and the rollback failed": {
			"It was requested.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), ActWait, "",
		},
		"aborted, and the promotion failed": {
			"It goes back.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), ActRollback, mine1,
		},
		"promoted, and the promotion failed": {
			"Once is enough.", facts(promoted), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), ActWait, "",
		},
		"promoted, and the rollback failed": {
			"What is rolled back is not promoted.", facts(full), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), ActWait, "",
		},
		"aborted, going back":        {"Once is enough.", facts(abort), nil, standing(pb.State_STATE_ROLLING_BACK, mine1), ActWait, ""},
		"aborted, promoting":         {"A promotion is taken back until it is over.", facts(abort), nil, standing(pb.State_STATE_PROMOTING, mine1), ActRollback, mine1},
		"aborted, promoting in full": {"Argo has taken the template for stable.", facts(abort, promoted), nil, standing(pb.State_STATE_PROMOTING, mine1), ActWait, ""},
		"aborted, over":              {"Nothing to roll back.", facts(abort), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), ActWait, ""},
		"aborted, someone else's": {
			"It is not ours to end.", facts(abort), nil, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), ActWait, "",
		},
		"promote --full":  {"Between steps no step is called for it.", facts(full), nil, standing(pb.State_STATE_READY, mine1), ActPromote, mine1},
		"promoted":        {"The last step was no promotion.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1), ActPromote, mine1},
		"promoted, stale": {"The status is of an older spec.", facts(promoted, stale), nil, standing(pb.State_STATE_READY, mine1), ActWait, ""},
		"promoted, new template": {
			"No step has seen t3 serve.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1, template("t3")), ActWait, "",
		},
		"undone to stable": {
			"Argo is back at its stable template at once: that is no promotion.",
			facts(undone), nil, standing(pb.State_STATE_READY, mine1), ActRollback, mine1,
		},
		"undone to stable, over": {
			"And the workload's template, still the new one, is not to be promoted for it.",
			facts(undone), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), ActWait, "",
		},
		"another template":        {"The steps that follow begin anew.", facts(), nil, standing(pb.State_STATE_READY, older), ActRollback, older},
		"another template, stale": {"Not before Argo knows.", facts(stale), nil, standing(pb.State_STATE_READY, older), ActWait, ""},
		"at rest":                 {"All runs as it should.", facts(promoted), nil, standing(pb.State_STATE_COMPLETED, mine1), ActWait, ""},
		"promoted before the first step": {
			"promote --full in a pause that comes first.", facts(promoted), nil, standing(pb.State_STATE_HOLDING, "", owner("")), ActInitialize, mine1,
		},
		"promoted after an abort": {
			"The retry is a new release.", facts(promoted), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), ActInitialize, mine2,
		},
		"first deployment over a waiting template": {
			"What waited before the Rollout was there goes through the steps.",
			facts(func(f *Facts) { f.Hash, f.Stable, f.Initial, f.Number = "h1", "h1", true, "1" }), nil,
			standing(pb.State_STATE_HOLDING, "", owner("")), ActWait, "",
		},
		"rival": {
			"The second Rollout begins nothing.", facts(promoted, func(f *Facts) { f.Rival = "x" }), nil,
			standing(pb.State_STATE_HOLDING, "", owner("")), ActWait, "",
		},
		"manual, promoted, new template waits": {
			"Nothing says that Argo means it.", facts(promoted), settings(manual), standing(pb.State_STATE_HOLDING, "", owner("")), ActWait, "",
		},
		"manual, promote --full": {
			"Now it does.", facts(full), settings(manual), standing(pb.State_STATE_HOLDING, "", owner("")), ActInitialize, mine1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := test.config
			if config == nil {
				config = settings()
			}
			got := Settle(test.facts, config, test.context)
			if got.Action != test.want || got.Release != test.release {
				t.Errorf("%s\ngot %+v, want action %d of %q", test.reason, got, test.want, test.release)
			}
			if got.Action == ActPromote && got.Revision != "t2" {
				t.Errorf("promotes revision %q, want only the one that was seen", got.Revision)
			}
		})
	}
}

func TestID(t *testing.T) {
	t.Parallel()
	id := facts().ID("t2", 3)
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
