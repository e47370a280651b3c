// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package converge

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/stretchr/testify/assert"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// workload is one whose groups run t1, with the template t2.
func workload(state pb.State, release string, changes ...func(*pb.BatchContext)) *pb.BatchContext {
	c := &pb.BatchContext{
		State: state, ReleaseId: release, Owner: "me", StableRevision: "t1", UpdateRevision: "t2", TemplateRevision: "t2", Message: "m",
	}
	for _, change := range changes {
		change(c)
	}
	return c
}

func template(t string) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.TemplateRevision = t }
}

func intends(i pb.FinalizeIntent) func(*pb.BatchContext) {
	return func(c *pb.BatchContext) { c.Intent = i }
}

func foreign(c *pb.BatchContext) { c.Owner = "you" }

const (
	promote  = pb.FinalizeIntent_FINALIZE_INTENT_PROMOTE
	rollback = pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
)

// describe returns a move as its outcome, or as its request and the revision that this names.
func describe(m Move) string {
	switch r := m.Request.(type) {
	case nil:
		return [...]string{"wait", "call", "reached", "held", "foreign", "rolled back"}[m.Outcome]
	case *pb.AdoptRequest:
		return "Adopt"
	case *pb.DisownRequest:
		return "Disown " + r.GetTemplateRevision()
	case *pb.InitializeRequest:
		return fmt.Sprintf("Initialize %s %s", r.GetReleaseId(), r.GetTemplateRevision())
	case *pb.UpgradeBatchRequest:
		return fmt.Sprintf("UpgradeBatch %s %s %s", r.GetReleaseId(), r.GetGroups(), r.GetUpdateRevision())
	case *pb.FinalizeRequest:
		return strings.TrimSpace(fmt.Sprintf("%s %s %s", strings.TrimPrefix(r.GetIntent().String(), "FINALIZE_INTENT_"), r.GetReleaseId(), r.GetUpdateRevision()))
	default:
		return fmt.Sprintf("%T", m.Request)
	}
}

func TestNext(t *testing.T) {
	t.Parallel()
	upgrade := Goal{Kind: Upgrade, Release: "r2", Revision: "t2", Target: &pb.UpgradeBatchRequest{Target: &pb.UpgradeBatchRequest_Groups{Groups: "2"}}}
	begin := Goal{Kind: Upgrade, Release: "r2", Revision: "t2"}
	full := Goal{Kind: Promote, Release: "r2", Revision: "t2"}
	unproven := Goal{Kind: Upgrade, Release: "r2", Why: "no step"}
	for name, test := range map[string]struct {
		reason  string
		goal    Goal
		context *pb.BatchContext
		want    string
	}{
		"not adopted":                     {"No template may roll by itself.", begin, workload(pb.State_STATE_UNMANAGED, ""), "Adopt"},
		"not adopted, held":               {"Nor without a release.", Goal{}, workload(pb.State_STATE_UNMANAGED, ""), "Adopt"},
		"not adopted, disown":             {"It is done.", Goal{Kind: Disown}, workload(pb.State_STATE_UNMANAGED, ""), "reached"},
		"another's release":               {"It is not ours to steer.", upgrade, workload(pb.State_STATE_READY, "x", foreign), "foreign"},
		"another's release, rollback":     {"Nor to end.", Goal{Kind: RollBack}, workload(pb.State_STATE_READY, "x", foreign), "foreign"},
		"another's release, disown":       {"Nor to end.", Goal{Kind: Disown}, workload(pb.State_STATE_READY, "x", foreign), "foreign"},
		"begin":                           {"A step asks for t2.", begin, workload(pb.State_STATE_COMPLETED, "r1", func(c *pb.BatchContext) { c.UpdateRevision = "t1" }), "Initialize r2 t2"},
		"begin, no evidence":              {"Nothing asks for a template.", unproven, workload(pb.State_STATE_HOLDING, ""), "held"},
		"begin, another template":         {"Only t2 was asked for.", begin, workload(pb.State_STATE_HOLDING, "", template("t3")), "held"},
		"begin, template not recorded":    {"LWS is about to.", begin, workload(pb.State_STATE_HOLDING, "", template("")), "wait"},
		"begin, no id":                    {"The host has no release for it.", Goal{Kind: Upgrade, Revision: "t2"}, workload(pb.State_STATE_HOLDING, ""), "held"},
		"begin, nothing waits":            {"The groups run it.", begin, workload(pb.State_STATE_HOLDING, "", func(c *pb.BatchContext) { c.StableRevision = "t2" }), "reached"},
		"begin, rolled back":              {"An abort outlives the host.", begin, workload(pb.State_STATE_ROLLED_BACK, "r2"), "rolled back"},
		"begin, an older one rolled back": {"The host asks for another release.", begin, workload(pb.State_STATE_ROLLED_BACK, "r1"), "Initialize r2 t2"},
		"upgrade":                         {"The release is in flight.", upgrade, workload(pb.State_STATE_HOLDING, "r2"), "UpgradeBatch r2 2 t2"},
		"upgrade, nothing left":           {"It was requested.", begin, workload(pb.State_STATE_READY, "r2"), "reached"},
		"upgrade, another template":       {"No step has seen t3.", upgrade, workload(pb.State_STATE_READY, "r2", template("t3")), "held"},
		"upgrade, driver starts over":     {"It still moves to t2.", upgrade, workload(pb.State_STATE_READY, "r2", func(c *pb.BatchContext) { c.UpdateRevision = "t0" }), "wait"},
		"upgrade, an older release":       {"A newer template replaces it.", upgrade, workload(pb.State_STATE_READY, "r1"), "ROLLBACK r1"},
		"upgrade, an older one promoting": {"It ends first.", upgrade, workload(pb.State_STATE_PROMOTING, "r1", intends(promote)), "wait"},
		"upgrade, an older one failed":    {"It can't end otherwise.", upgrade, workload(pb.State_STATE_FAILED, "r1", intends(promote)), "ROLLBACK r1"},
		"upgrade, promoting":              {"The driver is at it.", upgrade, workload(pb.State_STATE_PROMOTING, "r2", intends(promote)), "wait"},
		"promote":                         {"A user promoted t2.", full, workload(pb.State_STATE_READY, "r2"), "PROMOTE r2 t2"},
		"promote, another template":       {"Not t3.", full, workload(pb.State_STATE_READY, "r2", template("t3")), "held"},
		"promote, driver starts over":     {"It still moves to t2.", full, workload(pb.State_STATE_READY, "r2", func(c *pb.BatchContext) { c.UpdateRevision = "t0" }), "wait"},
		"promote, not begun":              {"The release comes first.", full, workload(pb.State_STATE_HOLDING, ""), "Initialize r2 t2"},
		"promote, rolling back":           {"What is rolled back is not promoted.", full, workload(pb.State_STATE_ROLLING_BACK, "r2"), "wait"},
		"promote, rollback failed":        {"Nor then.", full, workload(pb.State_STATE_FAILED, "r2", intends(rollback)), "wait"},
		"rollback":                        {"Whatever the template is.", Goal{Kind: RollBack}, workload(pb.State_STATE_READY, "r2", template("t3")), "ROLLBACK r2"},
		"rollback of a promotion":         {"It can be taken back.", Goal{Kind: RollBack}, workload(pb.State_STATE_PROMOTING, "r2", intends(promote)), "ROLLBACK r2"},
		"rollback, requested":             {"Once is enough.", Goal{Kind: RollBack}, workload(pb.State_STATE_FAILED, "r2", intends(rollback)), "wait"},
		"rollback, over":                  {"Nothing is left.", Goal{Kind: RollBack}, workload(pb.State_STATE_ROLLED_BACK, "r2"), "reached"},
		"hold in mid-release":             {"It stays as it is.", Goal{}, workload(pb.State_STATE_READY, "r2"), "held"},
		"register":                        {"The groups run the template.", Goal{Release: "r0"}, workload(pb.State_STATE_HOLDING, "", foreign, template("t1"), func(c *pb.BatchContext) { c.UpdateRevision = "t1" }), "Initialize r0 t1"},
		"register, template waits":        {"It gets its owner with its release.", Goal{Release: "r0"}, workload(pb.State_STATE_HOLDING, "", foreign), "held"},
		"disown":                          {"Nothing waits.", Goal{Kind: Disown}, workload(pb.State_STATE_ROLLED_BACK, "r2", template("t1")), "Disown t1"},
		"disown, template waits":          {"LWS would roll it out at once.", Goal{Kind: Disown}, workload(pb.State_STATE_ROLLED_BACK, "r2"), "held"},
		"disown, template not recorded":   {"It may be the one that the groups run.", Goal{Kind: Disown}, workload(pb.State_STATE_ROLLED_BACK, "r2", template("")), "wait"},
		"disown in mid-release":           {"The safe end.", Goal{Kind: Disown}, workload(pb.State_STATE_READY, "r2"), "ROLLBACK r2"},
		"disown, promoted":                {"The object said so.", Goal{Kind: Disown, Revision: "t2"}, workload(pb.State_STATE_READY, "r2"), "PROMOTE r2 t2"},
		"disown, promoted, new template":  {"Not of t3.", Goal{Kind: Disown, Revision: "t2"}, workload(pb.State_STATE_READY, "r2", template("t3")), "ROLLBACK r2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := test.goal
			g.Owner, g.Workload = "me", &pb.WorkloadRef{Namespace: "ns", Name: "w"}
			before := proto.Clone(test.context)
			assert.Equal(t, test.want, describe(Next(g, test.context)), test.reason)
			assert.True(t, proto.Equal(before, test.context), "the context was changed")
		})
	}
}
