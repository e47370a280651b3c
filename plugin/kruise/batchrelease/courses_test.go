// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package batchrelease

import (
	"errors"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/openkruise/rollouts/api/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/words"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// course is a BatchRelease of 25%, 50% and 100%, and a driver, to which a scenario happens.
type course struct {
	release *v1beta1.BatchRelease
	driver  *model
}

// TestCourses runs testdata/courses.txt. A course begins at rest, or with the release of v2 at its partition. Its lines are what happens: the plan or
// the workload changes, or the BatchRelease is deleted; the cluster gets further with tick, the host with play, and both until nothing changes with
// run. The last two tell how the status went, what the driver was asked for, and the status.
func TestCourses(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/courses.txt", func(t *testing.T, d *datadriven.TestData) string {
		c := course{batchRelease(-1), newModel(4)}
		words.Set(t, d.CmdArgs, c.define)
		if d.Cmd == "released" {
			c.driver = released(t, c.release)
		}
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			told.WriteString(c.happen(t, line))
		}
		return told.String()
	})
}

// released returns the driver of a BatchRelease whose release of v2 stands at its partition.
func released(t *testing.T, r *v1beta1.BatchRelease) *model {
	t.Helper()
	d := newModel(4)
	run(t, r, d)
	d.template = "v2"
	run(t, r, d)
	d.calls = nil
	return d
}

func (c *course) happen(t *testing.T, line string) string {
	t.Helper()
	var story []string
	switch words.Line(t, line, c.define) {
	case "play":
		story = play(t, c.release, c.driver)
	case "run":
		story = run(t, c.release, c.driver)
	case "tick":
		c.driver.tick()
		return ""
	case "delete":
		c.release.DeletionTimestamp = ptr.To(metav1.NewTime(noon))
		return ""
	case "plan", "workload":
		return ""
	default:
		t.Fatalf("what is %q?", line)
	}
	if later, _ := Next(c.release, c.driver.context(), noon.Add(time.Minute)); c.driver.fail == nil && cmp.Diff(c.release.Status, later) != "" {
		t.Errorf("%s: time alone changes the status: %s", line, cmp.Diff(c.release.Status, later))
	}
	told := fmt.Sprintf("%s\n", strings.Join(append([]string{line + ":"}, story...), " "))
	if len(c.driver.calls) > 0 {
		told += fmt.Sprintf("  calls: %s\n", strings.Join(c.driver.calls, ", "))
		c.driver.calls = nil
	}
	return told + c.describe()
}

// describe tells the status.
func (c *course) describe() string {
	s := c.release.Status
	told := fmt.Sprintf("  %s, %s to %s, %d of %d updated, %d ready", brief(s), s.StableRevision, s.UpdateRevision,
		s.CanaryStatus.UpdatedReplicas, s.ObservedWorkloadReplicas, s.CanaryStatus.UpdatedReadyReplicas)
	if n := s.CanaryStatus.NoNeedUpdateReplicas; n != nil {
		told += fmt.Sprintf(", %d need no update", *n)
	}
	if Over(c.release) {
		told += ", over"
	}
	plan := c.release.Spec.ReleasePlan
	if s.ObservedReleasePlanHash != HashPlan(&plan) || s.ObservedRolloutID != plan.RolloutID || s.ObservedGeneration != 1 {
		told += ", of another plan"
	}
	for _, condition := range s.Conditions {
		told += fmt.Sprintf("\n  %s %s: %s", condition.Type, condition.Reason, condition.Message)
	}
	return told + fmt.Sprintf("\n  %q\n", s.Message)
}

func (c *course) define(f *flag.FlagSet) {
	plan, d := &c.release.Spec.ReleasePlan, c.driver
	f.Func("partition", "batchPartition, or none", func(s string) error {
		plan.BatchPartition = nil
		if s == "none" {
			return nil
		}
		plan.BatchPartition = new(int32)
		return words.Number(plan.BatchPartition)(s)
	})
	f.Func("batches", "of the plan", func(s string) error {
		plan.Batches = batchRelease(0, strings.Split(s, ",")...).Spec.ReleasePlan.Batches
		return nil
	})
	f.StringVar(&plan.RolloutID, "rollout-id", plan.RolloutID, "of the plan")
	f.StringVar((*string)(&plan.RollingStyle), "style", string(plan.RollingStyle), "of the plan")
	f.StringVar((*string)(&plan.FinalizingPolicy), "finalizing", string(plan.FinalizingPolicy), "policy of the plan")
	f.BoolFunc("set", "the workload is a DisaggregatedSet", func(string) error {
		c.release.Spec.WorkloadRef = v1beta1.ObjectRef{APIVersion: "disaggregatedset.x-k8s.io/v1", Kind: "DisaggregatedSet", Name: "vllm"}
		return nil
	})
	f.Func("new", "number of groups of another workload under the name", func(s string) error {
		*d = *newModel(0)
		defer d.resize()
		return words.Number(&d.replicas)(s)
	})
	f.BoolVar(&d.exists, "exists", d.exists, "the workload does")
	f.Func("replicas", "of the workload", func(s string) error {
		defer d.resize()
		return words.Number(&d.replicas)(s)
	})
	f.Func("kept", "groups that only the promotion replaces", words.Number(&d.kept))
	f.StringVar(&d.template, "template", d.template, "of the workload")
	f.StringVar(&d.stable, "stable", d.stable, "revision")
	f.StringVar(&d.update, "update", d.update, "revision")
	f.StringVar(&d.target, "target", d.target, "of the release")
	f.StringVar(&d.id, "id", d.id, "of the release")
	f.StringVar(&d.owner, "owner", d.owner, "of the release")
	f.Func("ready", "updated groups", words.Number(&d.ready))
	f.Func("state", "of the workload", words.Enum(&d.state, "STATE_", pb.State_value))
	f.Func("intent", "of the release", words.Enum(&d.intent, "FINALIZE_INTENT_", pb.FinalizeIntent_value))
	f.Func("refuses", "the reason, or none", func(reason string) error {
		var r pb.ErrorReason
		switch err := words.Enum(&r, "ERROR_REASON_", pb.ErrorReason_value)(reason); {
		case err == nil:
			d.fail = drivererr.New(r, "the driver refuses")
		case reason != "":
			d.fail = errors.New(reason)
		default:
			d.fail = nil
		}
		return nil
	})
}
