// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A command that is pasted reaches the driver that the one before it did.
func TestReachHasEveryFlagOfTheConnection(t *testing.T) {
	t.Parallel()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	new(connect.Flags).Add(flags)
	flags.VisitAll(func(f *pflag.Flag) {
		assert.True(t, slices.Contains(Reach, f.Name), "hints lack --%s", f.Name)
	})
}

// A command that is pasted has the lists of the one before it: a value may contain a comma, and some flags take one value at a time.
func TestHintsKeepLists(t *testing.T) {
	t.Parallel()
	parsed := func(args ...string) (*cobra.Command, [][]string) {
		var array, list []string
		cmd := &cobra.Command{}
		cmd.Flags().StringArrayVar(&array, "canary-metadata-prefix", nil, "")
		cmd.Flags().StringSliceVar(&list, "canary-header", nil, "")
		require.NoError(t, cmd.ParseFlags(args))
		return cmd, [][]string{array, list}
	}
	cmd, want := parsed("--canary-metadata-prefix", "a/", "--canary-metadata-prefix", "b/", "--canary-header", `"x=1,2"`, "--canary-header", "y=3")
	hint := FlagsOf(cmd, func(string) bool { return true })
	// The words have no space, so the quotes of the shell are all that has to be removed.
	_, got := parsed(strings.Fields(strings.ReplaceAll(hint, "'", ""))...)
	assert.Equal(t, want, got, "%s: %q, want %q", hint, got, want)
}

func TestNextStepsOfFailedAbort(t *testing.T) {
	t.Parallel()
	c := &pb.BatchContext{ReleaseId: "r1", State: pb.State_STATE_FAILED, Intent: pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK}
	text := nextSteps(c, Hints{Again: "lockstep abort vllm", Abort: "lockstep abort vllm"})
	assert.Equal(t, 1, strings.Count(text, "abort vllm"), "one command is all that helps: %q", text)
}

// A command that is printed is not refused when it is pasted: to end the release of another host takes --ignore-owner, and no other host resumes it.
func TestRemediesForAnotherHostsRelease(t *testing.T) {
	t.Parallel()
	const abort = "lockstep abort vllm"
	hints := Hints{Again: "lockstep release vllm", Resume: "lockstep release vllm", Status: "lockstep status vllm", Abort: abort, Promote: "lockstep promote vllm"}
	for owner, other := range map[string]bool{"": false, "lockstep-cli/jo@laptop": false, "argo-rollouts/default/vllm": true} {
		refused := drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release r1 holds it"), "release_id", "r1")
		text := explainError(drivererr.WithMetadata(refused, "owner", owner), "release vllm", hints).Error()
		assert.True(t, strings.Contains(text, "--release-id r1") != other && strings.Contains(text, abort+" --ignore-owner") == other && strings.Contains(text, "end it with "+owner) == other,
			"a release of %q:\n%s", owner, text)
		for _, state := range []pb.State{pb.State_STATE_READY, pb.State_STATE_FAILED, pb.State_STATE_PROMOTING} {
			next := nextSteps(&pb.BatchContext{ReleaseId: "r1", Owner: owner, State: state}, hints)
			assert.False(t, strings.Contains(next, abort+" --ignore-owner") != other || strings.Contains(next, "promote vllm\n") == (other || state != pb.State_STATE_READY),
				"%s of %q:%s", state, owner, next)
		}
	}
}

// A release that is over keeps its id, and an abort does not free it.
func TestRemediesForReusedID(t *testing.T) {
	t.Parallel()
	reused := drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED, "release r1 began with another policy")
	for again, over := range map[string]bool{"lockstep release vllm": false, "lockstep release vllm --release-id r1": true} {
		text := explainError(reused, "release vllm", Hints{Again: again, Resume: "lockstep release vllm", Abort: "lockstep abort vllm"}).Error()
		assert.True(t, !strings.Contains(text, "--release-id") && strings.Contains(text, "over, to begin another one: lockstep release vllm") == over,
			"%s:\n%s", again, text)
	}
}

// There is nothing to promote or abort before a release has begun.
func TestInterruptedBeforeItBegins(t *testing.T) {
	t.Parallel()
	before := &pb.BatchContext{ReleaseId: "r0", State: pb.State_STATE_COMPLETED}
	for _, c := range []*pb.BatchContext{nil, before, {State: pb.State_STATE_HOLDING}} {
		err := outcomeError(host.Result{Outcome: host.OutcomeInterrupted, Context: c}, Hints{Again: "lockstep release vllm", Promote: "promote", Abort: "abort"})
		assert.Equal(t, "interrupted: no release was started", err.Error(), c)
	}
}

func TestParseRef(t *testing.T) {
	t.Parallel()
	for argument, want := range map[string][2]string{
		"vllm": {"", "vllm"}, "lws/vllm": {"LeaderWorkerSet", "vllm"}, "leaderworkersets.leaderworkerset.x-k8s.io/vllm": {"LeaderWorkerSet", "vllm"},
		"disaggregatedset/llm": {"DisaggregatedSet", "llm"}, "DisaggregatedSets/llm": {"DisaggregatedSet", "llm"},
	} {
		if ref, err := ParseRef("serving", argument); err != nil || ref.GetKind() != want[0] || ref.GetName() != want[1] || ref.GetNamespace() != "serving" {
			t.Errorf("%s: %v, %v", argument, ref, err)
		}
	}
	for _, wrong := range []string{"ds/llm", "deployment/vllm", "disaggregatedset/"} {
		ref, err := ParseRef("serving", wrong)
		assert.Error(t, err, "%s: %v", wrong, ref)
	}
}
