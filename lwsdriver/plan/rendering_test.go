// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"k8s.io/utils/ptr"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// In every scenario a driver with a newer rendering version writes the record first, and once: then it decides as the older one
// does. The older one then carries nothing on.
func TestRenderingIsRaisedFirst(t *testing.T) {
	raised := 0
	eachScenario(t, func(t *testing.T, d *datadriven.TestData, o Observation) {
		older := reconcile(o)
		if r := o.release(); !rendersObjects(r) || o.newerDetail() != "" || o.Gone || o.Stable.Deleting || o.Succeeded || older.Action == nil {
			return
		}
		raised++
		o.Rendering = o.Record.Release.Rendering + 1
		newer := reconcile(o)
		a, ok := newer.Action.(SetStable)
		if !ok || newer.State != older.State || newer.Message != older.Message {
			d.Fatalf(t, "%v, want %v after the record:\n%s", newer.Action, older.Action, describe(o, newer))
		}
		if rendersObjects(a.Record.Release) && a.Record.Release.Rendering != o.Rendering {
			d.Fatalf(t, "%v leaves the rendering version at %d", a, a.Record.Release.Rendering)
		}
		if _, ok := older.Action.(SetStable); ok {
			return // that write has the version
		}
		o.Record = &a.Record
		if now := reconcile(o); now.Action != nil && now.Action.String() != older.Action.String() {
			d.Fatalf(t, "%v after the record, want %v", now.Action, older.Action)
		}
		o.Rendering--
		if now := reconcile(o); now.Action != nil || now.Reason != ReasonNewerDriver {
			d.Fatalf(t, "the older driver carries on: %s", describe(o, now))
		}
	})
	assert.GreaterOrEqual(t, raised, 20, "only %d scenarios carry a release on", raised)
}

func renderedBy(t *testing.T, driver, release string) Observation {
	t.Helper()
	return observed(t, `driver rendering=`+driver+`
policy batches=25%,50%
workload vllm replicas=4 revision=B hold
record phase=Progressing stable=A update=B rendering=`+release+`
groups 0-3 revision=A ready=1h
canary vllm-b replicas=1 carries=B target=25%#0@1m
groups 0 revision=B ready=1m`)
}

// A request of a driver with an older rendering version is refused, except for a rollback, which keeps the version.
func TestNewerRenderingIsOnlyRolledBack(t *testing.T) {
	o := renderedBy(t, "1", "2")
	for name, i := range map[string]Intent{
		"batch": SetTarget{ReleaseID: "r-1", Batch: ptr.To(1)}, "promote": Promote{ReleaseID: "r-1"},
		"begin": Begin{ReleaseID: "r-2", Policy: &pb.ReleasePolicy{}},
	} {
		_, err := Decide(o, i)
		assert.True(t, drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NEWER_DRIVER && strings.Contains(err.Error(), "rendering version 2 (this driver has 1)"),
			"%s: %v", name, err)
	}
	d, err := Decide(o, RollBack{ReleaseID: "r-1"})
	a, ok := d.Action.(SetStable)
	assert.True(t, err == nil && ok && a.Record.Release.Phase == record.CleaningUp && a.Record.Release.Rendering == 2,
		"rollback: %v, %+v", err, d.Action)
}

// A request of a driver with a newer rendering version raises it in the write that records the request; the target of a batch
// goes to the record for that. A rollback does not raise it.
func TestRequestsRaiseTheRendering(t *testing.T) {
	o := renderedBy(t, "2", "1")
	for name, tt := range map[string]struct {
		intent Intent
		want   int
	}{
		"batch":    {SetTarget{ReleaseID: "r-1", Batch: ptr.To(1)}, 2},
		"promote":  {Promote{ReleaseID: "r-1"}, 2},
		"rollback": {RollBack{ReleaseID: "r-1"}, 1},
	} {
		d, err := Decide(o, tt.intent)
		a, ok := d.Action.(SetStable)
		if err != nil || !ok || a.Record.Release.Rendering != tt.want {
			t.Errorf("%s: %v, %+v", name, err, d.Action)
			continue
		}
		if _, ok := tt.intent.(SetTarget); !ok {
			continue
		}
		next := o
		next.Record = &a.Record
		d = reconcile(next)
		assert.True(t, d.Action != nil && d.Action.String() == "scale vllm-b to 2 groups", "after the target is recorded: %v", d.Action)
	}
	assert.Equal(t, 1, o.Record.Release.Rendering, "the observation was changed")
	assert.Error(t, checkDecision(o, nil, Decision{Action: RepairCanary{Name: "vllm-b"}}),
		"a write before the rendering version is raised is not refused")
}

func TestBeginRecordsTheRendering(t *testing.T) {
	o := observed(t, `driver rendering=3
workload vllm replicas=4 revision=B recorded=A,B hold
record phase=Promoted stable=0 update=A rendering=5
groups 0-3 revision=A ready=1h`)
	d, err := Decide(o, Begin{ReleaseID: "r-2", Policy: &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY}})
	a, ok := d.Action.(SetStable)
	assert.True(t, err == nil && ok && a.Record.Release.Rendering == 3, "%v, %+v", err, d.Action)
}
