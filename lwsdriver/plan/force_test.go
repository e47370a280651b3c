// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

const stuckRollBack = `policy style=PARTITION deadline=10m
workload vllm replicas=4 revision=B hold
record phase=RollingBack stable=A update=B since=1m
groups 0 revision=A ready=1h
groups 1 revision=A reason=Unschedulable lost=20m
groups 2-3 revision=B ready=1h`

// Force is recorded with the rollback, or added to one that runs. Repeated it changes nothing, until the rollback has been
// stuck again for its deadline.
func TestForceIsRecordedOnce(t *testing.T) {
	running := observed(t, stuckRollBack)
	began := running.Record.Release.PhaseAt
	force := func(o Observation) *record.Release {
		t.Helper()
		d := must(Decide(o, RollBack{ReleaseID: "r-1", Force: true}))
		a, ok := d.Action.(SetStable)
		if !ok {
			return nil
		}
		return a.Record.Release
	}
	fresh := observed(t, stuckRollBack)
	fresh.Record.Release.Phase = record.Progressing
	if r := force(fresh); r == nil || r.Phase != record.RollingBack || !r.Force || !slices.Equal(r.GivenUp, []int{1}) {
		t.Errorf("a new rollback: %+v", r)
	}
	d, err := Decide(running, RollBack{ReleaseID: "r-1"})
	assert.True(t, err == nil && d.Action == nil, "without force: %+v, %v", d.Action, err)
	r := force(running)
	require.True(t, r != nil && slices.Equal(r.GivenUp, []int{1}) && r.PhaseAt.Equal(began), "a running rollback: %+v", r)
	running.Record.Release = r
	again := force(running)
	assert.Nil(t, again, "repeated: %+v", again)
	running.Stable.Groups[0].Ready, running.Stable.Groups[0].LostAt = false, noon
	now := force(running)
	assert.Nil(t, now, "a group that the rollback may have restarted is given up: %+v", now)
	running.Now = noon.Add(time.Hour)
	later := force(running)
	assert.True(t, later != nil && slices.Equal(later.GivenUp, []int{0, 1}), "another group is lost for the deadline: %+v", later)
	running.Stable.Replicas = math.MaxInt32
	if many := force(running); many == nil || len(many.GivenUp) != record.MaxGivenUp {
		t.Errorf("more groups are missing than a record has room for: %+v", many)
	} else if running.Record.Release = many; !strings.Contains(running.heldUpBy("", ""), "at most 1000") {
		t.Errorf("the limit is not explained: %q", running.heldUpBy("", ""))
	}
	over := observed(t, `workload vllm replicas=1 revision=B hold
record phase=CleaningUp stable=A update=B
groups 0 revision=A ready=1h`)
	late := force(over)
	assert.Nil(t, late, "a rollback that is over: %+v", late)
}

// With force the invariant still allows one group more than the given-up ones, and no group at the stable revision.
func TestForceIsBounded(t *testing.T) {
	o := observed(t, stuckRollBack)
	restart := func(leader string) error {
		return checkDecision(o, nil, Decision{Action: RestartGroup{Leader: leader}})
	}
	assert.Error(t, restart("vllm-3"), "a group that serves is restarted past maxUnavailable without force")
	o.recordForce(o.Record.Release)
	assert.NoError(t, restart("vllm-3"))
	for _, leader := range []string{"vllm-0", "vllm-1"} {
		assert.Error(t, restart(leader), "%s, at the stable revision, is restarted", leader)
	}
	o.Stable.Groups[2].Ready, o.Stable.Groups[2].LostAt = false, noon
	assert.Error(t, restart("vllm-3"), "a second group is restarted beyond the broken one")
}
