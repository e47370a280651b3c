// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const mine2 = "01234567.2.h2.t2.2" // the retry of mine1

func owner(name string) func(*pb.BatchContext) { return func(c *pb.BatchContext) { c.Owner = name } }

func intends(intent pb.FinalizeIntent) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.Intent = intent }
}

func waitOnFailure(c *Config) { c.WaitOnFailure = true }
func tooShort(c *Config)      { c.Unfit = errors.New("the deadline is too short") }

func TestStepper(t *testing.T) {
	t.Parallel()
	weight := int32(20)
	tests := map[string]struct {
		reason  string
		stepper given
		context *pb.BatchContext
		want    string
		says    string
	}{
		"first deployment": {
			"The controller may run a step although nothing is to be released yet.",
			given{facts: facts(func(f *Facts) { f.Stable = "" })}, standing(pb.State_STATE_HOLDING, ""), "succeed", "first deployment",
		},
		"rival": {
			"Two Rollouts of one workload: the second one fails with the reason.",
			given{facts: facts(func(f *Facts) { f.Rival = "other" })}, standing(pb.State_STATE_HOLDING, ""), "fail", "Rollout other",
		},
		"unrecorded template": {
			"Without a revision nothing can be meant.",
			given{}, standing(pb.State_STATE_HOLDING, "", template("")), "wait", "record the template",
		},
		"begin": {
			"The first step begins the release.",
			given{}, standing(pb.State_STATE_HOLDING, ""), "Initialize " + mine1, "",
		},
		"begin after another": {
			"The release before is over.",
			given{}, standing(pb.State_STATE_COMPLETED, older, func(c *pb.BatchContext) { c.StableRevision, c.UpdateRevision = "t0", "t1" }),
			"Initialize " + mine1, "",
		},
		"deadline": {
			"Argo would never run the step again.",
			given{config: settings(tooShort)}, standing(pb.State_STATE_HOLDING, ""), "fail", "too short",
		},
		"deadline of nothing": {
			"A Rollout with nothing to release needs no time.",
			given{config: settings(tooShort)},
			standing(pb.State_STATE_HOLDING, "", func(c *pb.BatchContext) { c.StableRevision = "t2" }), "succeed", "nothing",
		},
		"a template that stands for nothing": {
			"Whatever waits, no step asked for it.",
			given{facts: facts(func(f *Facts) { f.Wanted, f.Noted.seen = "", "" })}, standing(pb.State_STATE_HOLDING, ""), "wait", "not known yet",
		},
		"retry": {
			"A driver takes no id twice, and no step of this attempt has worked on the release that was rolled back.",
			given{}, standing(pb.State_STATE_ROLLED_BACK, mine1), "Initialize " + mine2, "",
		},
		"rolled back by others": {
			"A step of this attempt worked on it: a user rolled it back, and a new release would undo that.",
			given{facts: facts(func(f *Facts) { f.Begun = []string{mine1} })}, standing(pb.State_STATE_ROLLED_BACK, mine1), "fail", "outside of this Rollout",
		},
		"promoted already": {
			"Steps after the promotion have nothing left to do.",
			given{}, standing(pb.State_STATE_COMPLETED, mine1), "succeed", "promoted",
		},
		"nothing": {
			"The groups run the template.",
			given{}, standing(pb.State_STATE_NOTHING_TO_RELEASE, mine1, func(c *pb.BatchContext) { c.StableRevision = "t2" }), "succeed", "nothing",
		},
		"someone else's release": {
			"It is not ours to end.",
			given{}, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), "fail", "lockstep-cli/jo",
		},
		"the older template's release": {
			"A new template in mid-release starts over.",
			given{}, standing(pb.State_STATE_READY, older), "ROLLBACK " + older, "",
		},
		"the older template's release, going": {
			"It is on its way.",
			given{}, standing(pb.State_STATE_ROLLING_BACK, older), "wait", "end of release",
		},
		"the older template's release, whose rollback failed": {
			"It was requested once.",
			given{}, standing(pb.State_STATE_FAILED, older, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), "wait", "end of release",
		},
		"the older template's release, whose promotion failed": {
			"It goes back.",
			given{}, standing(pb.State_STATE_FAILED, older, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), "ROLLBACK " + older, "",
		},
		"a deleted Rollout's release": {
			"A Rollout of the same name had another uid.",
			given{}, standing(pb.State_STATE_READY, "fedcba98.1.h2.t2.1"), "ROLLBACK fedcba98.1.h2.t2.1", "",
		},
		"edited meanwhile": {
			"The Controller is about to write the new revision into the Rollout.",
			given{}, standing(pb.State_STATE_READY, mine1, template("t3")), "wait", "new template",
		},
		"undone": {
			"The Rollout asks for an older template than the workload's, which was not edited.",
			given{canUndo: true, facts: facts(func(f *Facts) { f.Hash, f.Wanted = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1, func(c *pb.BatchContext) { c.StableRevision = "t1" }), "Undo t0", "restoring revision t0",
		},
		"undone, without undo": {
			"A driver that can't says so, with the way out.",
			given{facts: facts(func(f *Facts) { f.Hash, f.Wanted = "h0", "t0" })},
			standing(pb.State_STATE_COMPLETED, mine1), "fail", "restore it in Git",
		},
		"upgrade": {
			"The release stands, the step's groups are not asked for yet.",
			given{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_HOLDING, mine1), "UpgradeBatch " + mine1, "",
		},
		"upgrading": {
			"Asked for once; the driver is at it.",
			given{step: Step{Upgrade: "50%"}, accepted: upgraded}, standing(pb.State_STATE_UPGRADING, mine1), "wait", "as it is",
		},
		"upgraded": {
			"Ready is done.",
			given{step: Step{Upgrade: "50%"}, accepted: upgraded}, standing(pb.State_STATE_READY, mine1), "succeed", "",
		},
		"weight after upgrade": {
			"Traffic goes to groups that are ready.",
			given{step: Step{Upgrade: "50%", Weight: &weight}, accepted: upgraded}, standing(pb.State_STATE_READY, mine1), "SetWeight " + mine1, "",
		},
		"weight not there": {
			"The routes do not have it yet.",
			given{step: Step{Weight: &weight}, accepted: weighted}, standing(pb.State_STATE_READY, mine1), "wait", "",
		},
		"weight there": {
			"The routes have it, and the driver has verified it.",
			given{step: Step{Weight: &weight}, accepted: weighted},
			standing(pb.State_STATE_READY, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 20 }), "succeed", "",
		},
		"weight capped": {
			"Too few groups are ready for it, and the driver raises it by itself.",
			given{step: Step{Weight: &weight}, accepted: weighted},
			standing(pb.State_STATE_VERIFYING, mine1, func(c *pb.BatchContext) { c.TrafficWeight, c.Reason = 10, "CapacityBelowShare" }), "wait", "",
		},
		"weight capped, groups lost": {
			"The batch is not complete any more.",
			given{step: Step{Weight: &weight}, accepted: weighted},
			standing(pb.State_STATE_UPGRADING, mine1, func(c *pb.BatchContext) { c.TrafficWeight = 10 }), "wait", "",
		},
		"weight without a group": {
			"It would wait for ever.",
			given{step: Step{Weight: &weight}}, standing(pb.State_STATE_HOLDING, mine1), "fail", "no group",
		},
		"headers first": {
			"In the order of the fields.",
			given{step: Step{Headers: &[]*pb.HeaderMatch{}, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), "SetHeaderRoute " + mine1, "",
		},
		"mirror": {
			"In the order of the fields.",
			given{step: Step{Mirror: &weight, Weight: &weight}}, standing(pb.State_STATE_READY, mine1), "SetMirror " + mine1, "",
		},
		"promote": {
			"Everything before it is done.",
			given{step: Step{Promote: true}}, standing(pb.State_STATE_READY, mine1), "PROMOTE " + mine1, "",
		},
		"promote waits": {
			"A group that was ready is not any more.",
			given{step: Step{Promote: true}}, standing(pb.State_STATE_UPGRADING, mine1), "wait", "",
		},
		"promoting": {
			"The step is over when the promotion is.",
			given{step: Step{Promote: true}}, standing(pb.State_STATE_PROMOTING, mine1), "wait", "promoting",
		},
		"failed": {
			"The Rollout is aborted.",
			given{step: Step{Upgrade: "50%"}}, standing(pb.State_STATE_FAILED, mine1), "fail", "as it is",
		},
		"promoting, only a deletion lasts": {
			"An abort would roll back groups that serve.",
			given{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "CleanupDeadlineExceeded" }), "wait", "as it is",
		},
		"promoting, an autoscaler has removed groups": {
			"A person scales the workload up again.",
			given{step: Step{Promote: true}},
			standing(pb.State_STATE_FAILED, mine1, func(c *pb.BatchContext) { c.Reason = "StableCapacityReduced" }), "wait", "as it is",
		},
		"failed, patient": {
			"A person decides.",
			given{config: settings(waitOnFailure)}, standing(pb.State_STATE_FAILED, mine1), "wait", "",
		},
		"rolling back": {
			"An abort is under way, which Argo is about to tell.",
			given{}, standing(pb.State_STATE_ROLLING_BACK, mine1), "wait", "",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := test.stepper
			if g.facts.UID == "" {
				g.facts = facts()
			}
			if g.config == nil {
				g.config = settings()
			}
			stepper := stepper{
				Target: target(g.facts, g.config, g.canUndo), step: g.step, accepted: g.accepted,
			}
			got := stepper.next(test.context)
			if describe(t, got) != test.want || !strings.Contains(got.Why, test.says) {
				t.Errorf("%s\ngot %s (%s), want %s saying %q", test.reason, describe(t, got), got.Why, test.want, test.says)
			}
		})
	}
}

// upgraded and weighted are requests that the driver has accepted before.
var upgraded, weighted = []proto.Message{&pb.UpgradeBatchRequest{}}, []proto.Message{&pb.SetWeightRequest{}}

// given are the inputs of a decision for a step.
type given struct {
	facts    Facts
	config   *Config
	step     Step
	canUndo  bool
	accepted []proto.Message
}

func target(f Facts, config *Config, canUndo bool) Target {
	return NewTarget(undoes{can: canUndo}, f, config)
}

// describe returns a move as the RPC or intent with the release or revision that it names. Whatever begins or promotes names revision t2.
func describe(t *testing.T, m Move) string {
	t.Helper()
	revision, text := "t2", ""
	switch r := m.Request.(type) {
	case nil:
		return map[converge.Outcome]string{converge.Wait: "wait", converge.Reached: "succeed", converge.Failed: "fail"}[m.Outcome]
	case *pb.AdoptRequest:
		text = "Adopt"
	case *pb.InitializeRequest:
		text, revision = "Initialize "+r.GetReleaseId(), r.GetTemplateRevision()
	case *pb.UpgradeBatchRequest:
		text, revision = "UpgradeBatch "+r.GetReleaseId(), r.GetUpdateRevision()
	case *pb.FinalizeRequest:
		text = strings.TrimPrefix(r.GetIntent().String(), "FINALIZE_INTENT_") + " " + r.GetReleaseId()
		if r.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE {
			revision = r.GetUpdateRevision()
		}
	case *pb.UndoRequest:
		text = "Undo " + r.GetRevision()
	case *pb.SetWeightRequest:
		text, revision = "SetWeight "+r.GetReleaseId(), r.GetUpdateRevision()
	case *pb.SetHeaderRouteRequest:
		text, revision = "SetHeaderRoute "+r.GetReleaseId(), r.GetUpdateRevision()
	case *pb.SetMirrorRequest:
		text, revision = "SetMirror "+r.GetReleaseId(), r.GetUpdateRevision()
	default:
		t.Fatalf("unexpected request %T", r)
	}
	if revision != "t2" {
		t.Errorf("%s names revision %q, want only the one that the Rollout stands for", text, revision)
	}
	return text
}

func TestReconcileEnd(t *testing.T) {
	t.Parallel()
	abort := func(f *Facts) { f.Abort = true }
	full := func(f *Facts) { f.PromoteFull = true }
	promoted := func(f *Facts) { f.Stable = "h2" }
	progressed := func(f *Facts) { f.Progressed = true }
	skipped := func(f *Facts) { f.StepsDone = true }
	undone := func(f *Facts) { f.Hash, f.Wanted = "h1", "t1" }
	stale := func(f *Facts) { f.Current = false }
	tests := map[string]struct {
		reason  string
		facts   Facts
		config  *Config
		context *pb.BatchContext
		want    string
	}{
		"under way": {"Steps drive it.", facts(), nil, standing(pb.State_STATE_READY, mine1), "wait"},
		"aborted":   {"Traffic and capacity go back.", facts(abort), nil, standing(pb.State_STATE_READY, mine1), "ROLLBACK " + mine1},
		"aborted and failed": {
			"A failed release is what aborts are for.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1), "ROLLBACK " + mine1,
		},
		"aborted, and the rollback failed": {
			"It was requested.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), "wait",
		},
		"aborted, and the promotion failed": {
			"It goes back.", facts(abort), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), "ROLLBACK " + mine1,
		},
		"promoted, and the promotion failed": {
			"Once is enough.", facts(promoted), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE)), "wait",
		},
		"promoted, and the rollback failed": {
			"What is rolled back is not promoted.", facts(full), nil, standing(pb.State_STATE_FAILED, mine1, intends(pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK)), "wait",
		},
		"aborted, going back":        {"Once is enough.", facts(abort), nil, standing(pb.State_STATE_ROLLING_BACK, mine1), "wait"},
		"aborted, promoting":         {"A promotion is taken back until it is over.", facts(abort), nil, standing(pb.State_STATE_PROMOTING, mine1), "ROLLBACK " + mine1},
		"aborted, promoting in full": {"Argo has taken the template for stable.", facts(abort, promoted), nil, standing(pb.State_STATE_PROMOTING, mine1), "wait"},
		"aborted, over":              {"Nothing to roll back.", facts(abort), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), "wait"},
		"aborted, someone else's": {
			"It is not ours to end.", facts(abort), nil, standing(pb.State_STATE_READY, "x", owner("lockstep-cli/jo")), "wait",
		},
		"promote --full":  {"Between steps no step is called for it.", facts(full), nil, standing(pb.State_STATE_READY, mine1), "PROMOTE " + mine1},
		"promoted":        {"The last step was no promotion.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1), "PROMOTE " + mine1},
		"promoted, stale": {"The status is of an older spec.", facts(promoted, stale), nil, standing(pb.State_STATE_READY, mine1), "wait"},
		"promoted, new template": {
			"No step has seen t3 serve.", facts(promoted), nil, standing(pb.State_STATE_READY, mine1, template("t3")), "wait",
		},
		"undone to stable": {
			"Argo is back at its stable template at once: that is no promotion.",
			facts(undone), nil, standing(pb.State_STATE_READY, mine1), "ROLLBACK " + mine1,
		},
		"undone to stable, over": {
			"And the workload's template, still the new one, is not to be promoted for it.",
			facts(undone), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), "wait",
		},
		"another template":        {"The steps that follow begin anew.", facts(), nil, standing(pb.State_STATE_READY, older), "ROLLBACK " + older},
		"another template, stale": {"Not before Argo knows.", facts(stale), nil, standing(pb.State_STATE_READY, older), "wait"},
		"at rest":                 {"All runs as it should.", facts(promoted), nil, standing(pb.State_STATE_COMPLETED, mine1), "wait"},
		"promoted before the first step": {
			"promote --full in a pause that comes first.", facts(full), nil, standing(pb.State_STATE_HOLDING, "", owner("")), "Initialize " + mine1,
		},
		"promoted before the first step, over": {
			"Argo has ended it, and was seen before.", facts(promoted, progressed), nil, standing(pb.State_STATE_HOLDING, "", owner("")), "Initialize " + mine1,
		},
		"all steps skipped": {
			"A user said so.", facts(skipped), nil, standing(pb.State_STATE_HOLDING, "", owner("")), "Initialize " + mine1,
		},
		"stable, and never seen in progress": {
			"So does Argo with the first deployment of a Rollout that was deleted and applied again.",
			facts(promoted), nil, standing(pb.State_STATE_COMPLETED, older, func(c *pb.BatchContext) { c.UpdateRevision = "t1" }), "wait",
		},
		"promoted, seen, of an older template": {
			"A template that Argo can't process leaves the older hash.", facts(promoted, progressed, stale), nil,
			standing(pb.State_STATE_COMPLETED, older, func(c *pb.BatchContext) { c.UpdateRevision = "t1" }), "wait",
		},
		"promoted in full, edited since": {
			"The command meant t2.", facts(full), nil, standing(pb.State_STATE_HOLDING, "", template("t3")), "wait",
		},
		"promoted in full after an abort": {
			"Or before it, which nothing tells.", facts(abort, full), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), "wait",
		},
		"rolled back after all steps": {
			"An abort outlives what Argo says.", facts(promoted, progressed), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), "wait",
		},
		"rolled back by others after a promotion in full": {
			"An abort outlives the command before it.", facts(full), nil, standing(pb.State_STATE_ROLLED_BACK, mine1), "wait",
		},
		"aborted and promoted in full, never begun": {
			"Which one came last is not known.", facts(abort, full), nil, standing(pb.State_STATE_HOLDING, "", owner("")), "wait",
		},
		"no status yet": {
			"Nothing is stable.", facts(full, func(f *Facts) { f.Stable = "" }), nil, standing(pb.State_STATE_HOLDING, "", owner("")), "wait",
		},
		"rival": {
			"The second Rollout begins nothing.", facts(promoted, func(f *Facts) { f.Rival = "x" }), nil,
			standing(pb.State_STATE_HOLDING, "", owner("")), "wait",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := test.config
			if config == nil {
				config = settings()
			}
			if got := describe(t, target(test.facts, config, false).ReconcileEnd(test.context)); got != test.want {
				t.Errorf("%s\ngot %s, want %s", test.reason, got, test.want)
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

// asked is a driver that notes whether a release was begun.
type asked struct {
	Driver
	context *pb.BatchContext
	begun   bool
}

func (*asked) Has(pb.Capability) bool { return false }

func (a *asked) Call(_ context.Context, request proto.Message) (*pb.BatchContext, error) {
	if r, ok := request.(*pb.InitializeRequest); ok {
		a.begun, a.context.ReleaseId, a.context.Owner = true, r.GetReleaseId(), r.GetOwner()
	}
	return a.context, nil
}

// A step that has waited begins no release for a Rollout that was aborted, deleted or started over meanwhile.
func TestRunConfirmsBeforeItBegins(t *testing.T) {
	t.Parallel()
	for _, current := range []bool{true, false} {
		driver := &asked{context: standing(pb.State_STATE_HOLDING, "")}
		target := NewTarget(driver, facts(), settings())
		target.Confirm = func(context.Context) (bool, error) { return current, nil }
		out, err := target.Run(t.Context(), Step{}, 0)
		if err != nil || driver.begun != current || (out.Done == converge.Reached) != current {
			t.Errorf("current %v: begun %v, %+v, %v", current, driver.begun, out, err)
		}
	}
}
