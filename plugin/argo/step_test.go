// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestID(t *testing.T) {
	t.Parallel()
	id := facts().ID("t2", 3)
	got, ok := ParseID(id.String())
	assert.True(t, ok && got == id, "got %+v, %v, want %+v", got, ok, id)
	for _, s := range []string{"", "a.b.c.d", "a.b.c.d.0", "a.b.c.d.x", "20261121-120000-abcd", "a.b.c.d.1.1"} {
		got, ok := ParseID(s)
		assert.False(t, ok, "%q was taken for %+v", s, got)
	}
	long := ID{Rollout: "01234567", Number: "1000", Hash: "7c9f8d6b5f4", Revision: "7c9f8d6b5f4", Attempt: 100}
	n := len(long.String())
	assert.LessOrEqual(t, n, 63, "an id of %d characters is too long", n)
}

// asked is a driver that notes whether a release was begun. If end is set, the process ends with that call.
type asked struct {
	Driver
	context *pb.BatchContext
	begun   bool
	end     context.CancelFunc
}

func (*asked) Has(pb.Capability) bool { return false }

func (a *asked) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	if r, ok := request.(*pb.InitializeRequest); ok {
		if a.end != nil {
			a.end()
			return nil, status.FromContextError(ctx.Err()).Err()
		}
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
		assert.True(t, err == nil && driver.begun == current && (out.Done == converge.Reached) == current,
			"current %v: begun %v, %+v, %v", current, driver.begun, out, err)
	}
}

// A Rollout that can't be read was not found changed: the error is what a user has to resolve.
func TestRunReportsWhatItCannotConfirm(t *testing.T) {
	t.Parallel()
	driver, forbidden := &asked{context: standing(pb.State_STATE_HOLDING, "")}, errors.New("rollouts is forbidden")
	target := NewTarget(driver, facts(), settings())
	target.Confirm = func(context.Context) (bool, error) { return false, forbidden }
	out, err := target.Run(t.Context(), Step{}, 0)
	assert.True(t, errors.Is(err, forbidden) && !driver.begun, "begun %v, %+v, %v", driver.begun, out, err)
}

// A retry waits while the abort before it still rolls back, and then begins. The release that is rolled back is not one of the retry, which would
// have been ended by others.
func TestRunAfterARetryWaitsForTheRollback(t *testing.T) {
	t.Parallel()
	driver := &asked{context: standing(pb.State_STATE_ROLLING_BACK, mine1)}
	run := func(begun ...string) Outcome {
		out, err := NewTarget(driver, facts(func(f *Facts) { f.Begun = begun }), settings()).Run(t.Context(), Step{}, 0)
		require.NoError(t, err)
		return out
	}
	waits := run()
	assert.True(t, waits.Done == converge.Wait && waits.Release == "", "while it is rolled back: %+v", waits)
	out := run(mine1)
	assert.Equal(t, mine1, out.Release, "its own release is rolled back: %+v", out)
	driver.context.State = pb.State_STATE_ROLLED_BACK // also what begins, by others
	out = run()
	assert.True(t, out.Done == converge.Failed && out.Release == "01234567.2.h2.t2.2", "once it is rolled back: %+v", out)
}

// A plugin that is stopped while it begins a release was not refused: a step that fails would abort the Rollout.
func TestRunThatIsCutOffDoesNotFail(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	driver := &asked{context: standing(pb.State_STATE_HOLDING, ""), end: end}
	out, err := NewTarget(driver, facts(), settings()).Run(ctx, Step{}, 0)
	assert.Equal(t, converge.Wait, out.Done, "%+v, %v", out, err)
}

// Steps that are edited in mid-release are another list than the batches that the release has recorded.
func TestUpgradeOfEditedSteps(t *testing.T) {
	t.Parallel()
	recorded := []*pb.Batch{{Target: "10%", Groups: 1}, {Target: "100%", Groups: 10}}
	for groups, want := range map[string]*pb.UpgradeBatchRequest{
		"10%":  {Target: &pb.UpgradeBatchRequest_Batch{Batch: 0}},
		"25%":  {Target: &pb.UpgradeBatchRequest_Groups{Groups: "25%"}},
		"100%": {Target: &pb.UpgradeBatchRequest_Batch{Batch: 1}},
	} {
		config := settings(func(c *Config) { c.Policy.Batches = []string{"5%", "10%", "25%", "50%", "100%"} })
		c := standing(pb.State_STATE_READY, mine1, func(c *pb.BatchContext) { c.BatchPlan = recorded })
		r := run{Target: NewTarget(undoes{}, facts(), config), step: Step{Upgrade: groups}}
		got, _ := r.next(c).Request.(*pb.UpgradeBatchRequest)
		assert.Equal(t, want.GetTarget(), got.GetTarget(), "upgrade: %s", groups)
	}
}
