// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// TestDecisions runs testdata/decisions/*.txt. Each test is a Rollout in the middle of its second template, with what scenario.define says of it, and
// the workload, in the words of parseContext. The commands are those for a step, for the end of a release, for the annotations, for all that a
// Rollout needs beside its steps, and for what a held template waits for.
func TestDecisions(t *testing.T) {
	t.Parallel()
	datadriven.Walk(t, "testdata/decisions", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s := scenario{facts: facts(), config: settings()}
			words.Set(t, d.CmdArgs, s.define)
			c := parseContext(t, d.Input)
			target := NewTarget(undoes{can: s.canUndo}, s.facts, s.config)
			switch d.Cmd {
			case "step":
				step := run{Target: target, step: s.step, accepted: s.accepted}
				return describe(t, step.next(c)) + "\n"
			case "end":
				return describe(t, target.ReconcileEnd(c)) + "\n"
			case "annotate":
				return describeMove(t, target.trackRevisions(c))
			case "plan":
				return describeMove(t, planMove(target, c))
			case "held":
				c.Workload = target.Ref
				return target.heldFor(c) + "\n"
			default:
				d.Fatalf(t, "unknown command %q", d.Cmd)
				return ""
			}
		})
	})
}

// scenario are the inputs of a decision.
type scenario struct {
	facts    Facts
	config   *Config
	step     Step
	canUndo  bool
	accepted []proto.Message
}

func (s *scenario) define(flags *flag.FlagSet) {
	f := &s.facts
	flags.StringVar(&f.Stable, "stable", f.Stable, "hash of the stable template")
	flags.StringVar(&f.Hash, "hash", f.Hash, "hash of the template")
	flags.StringVar(&f.Number, "number", f.Number, "of the Rollout's revision")
	flags.StringVar(&f.Wanted, "wanted", f.Wanted, "the revision that the template stands for")
	flags.StringVar(&f.Rival, "rival", "", "an older Rollout of the workload")
	flags.BoolVar(&f.Abort, "abort", false, "aborted")
	flags.BoolVar(&f.PromoteFull, "full", false, "promoted in full")
	flags.BoolVar(&f.SeenAsked, "seen-asked", false, "all steps or a user were seen to ask for the template")
	flags.BoolVar(&f.StepsDone, "steps-done", false, "no step is left")
	flags.BoolVar(&f.Skipped, "skipped", false, "Argo has skipped a step of the plugin")
	flags.BoolVar(&f.Referenced, "referenced", false, "the pod template is another object's")
	flags.BoolVar(&f.Observed, "observed", false, "Argo has noted the generation")
	flags.BoolFunc("stale", "the status is not of the current spec", func(string) error { f.Current = false; return nil })
	flags.BoolFunc("none", "without annotations", func(string) error { f.Noted = revisions{}; return nil })
	flags.StringVar(&f.Noted.template, "template", f.Noted.template, "annotated in the pod template")
	flags.StringVar(&f.Noted.stable, "noted-stable", f.Noted.stable, "the stable revision that was annotated")
	flags.StringVar(&f.Noted.seen, "seen", f.Noted.seen, "the revision that was annotated last")
	flags.Func("begun", "a release on which a step has worked", func(id string) error { f.Begun = append(f.Begun, id); return nil })
	flags.BoolVar(&s.config.WaitOnFailure, "wait-on-failure", false, "a failed release waits for a user")
	flags.BoolFunc("unfit", "no release may begin", func(string) error { s.config.Unfit = errors.New("the deadline is too short"); return nil })
	flags.BoolFunc("mistaken", "the configuration can't be read", func(string) error {
		s.config.Policy, s.config.Unfit = nil, errors.New("add at least one step")
		return nil
	})
	flags.BoolVar(&s.canUndo, "can-undo", false, "of the driver")
	s.defineStep(flags)
}

func (s *scenario) defineStep(flags *flag.FlagSet) {
	weight := int32(20)
	flags.StringVar(&s.step.Upgrade, "upgrade", "", "the step's")
	flags.BoolFunc("weight", "the step's, of 20", func(string) error { s.step.Weight = &weight; return nil })
	flags.BoolFunc("mirror", "the step's, of 20", func(string) error { s.step.Mirror = &weight; return nil })
	flags.BoolFunc("headers", "the step's, none", func(string) error { s.step.Headers = &[]*pb.HeaderMatch{}; return nil })
	flags.BoolVar(&s.step.Promote, "promote", false, "the step's")
	flags.BoolFunc("upgraded", "the driver has accepted the step's upgrade", func(string) error {
		s.accepted = []proto.Message{&pb.UpgradeBatchRequest{}}
		return nil
	})
	flags.BoolFunc("weighted", "the driver has accepted the step's weight", func(string) error {
		s.accepted = []proto.Message{&pb.SetWeightRequest{}}
		return nil
	})
}

// parseContext returns the workload of a scenario, whose groups run t1, and whose template is t2.
func parseContext(t *testing.T, line string) *pb.BatchContext {
	t.Helper()
	c := standing(0, "")
	state := words.Line(t, line, func(f *flag.FlagSet) {
		f.Func("release", "of the Rollout, if it has no other owner", func(id string) error {
			c.ReleaseId, c.Owner = id, "argo-rollouts/ns/ro"
			return nil
		})
		f.StringVar(&c.Owner, "owner", "", "of the release")
		f.StringVar(&c.StableRevision, "stable", c.StableRevision, "that the groups run")
		f.StringVar(&c.UpdateRevision, "update", c.UpdateRevision, "of the release")
		f.StringVar(&c.TemplateRevision, "template", c.TemplateRevision, "of the workload")
		f.Func("intent", "the end that was requested", words.Enum(&c.Intent, "FINALIZE_INTENT_", pb.FinalizeIntent_value))
		f.StringVar(&c.Reason, "reason", "", "of the state")
		f.Func("weight", "in the routes", words.Number(&c.TrafficWeight))
	})
	require.NoError(t, words.Enum(&c.State, "STATE_", pb.State_value)(state))
	return c
}

// describe returns a move as the RPC or intent with the release or revision that it names. Whatever begins or promotes names revision t2.
func describe(t *testing.T, m Move) string {
	t.Helper()
	revision, text := "t2", ""
	switch r := m.Request.(type) {
	case nil:
		text = map[converge.Outcome]string{converge.Wait: "wait", converge.Reached: "succeed", converge.Failed: "fail"}[m.Outcome]
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
		text += fmt.Sprintf(", revision %q", revision)
	}
	return strings.TrimSuffix(text+": "+m.Why, ": ")
}

// describeMove adds the annotations of a move.
func describeMove(t *testing.T, m move) string {
	t.Helper()
	if r := m.annotate; r != nil {
		return fmt.Sprintf("annotate: %s\n  template=%s first=%s seen=%s canary=%s stable=%s\n", m.Why, r.template, r.first, r.seen, r.canary, r.stable)
	}
	return describe(t, m.Move) + "\n"
}
