// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func settings(partition int32, maxUnavailable, maxSurge string) rolling {
	return rolling{Partition: ptr.To(partition), MaxUnavailable: intstr.Parse(maxUnavailable), MaxSurge: intstr.Parse(maxSurge)}
}

// holding returns a workload of four groups with these settings in its spec.
func holding(r rolling) Observation {
	return Observation{Stable: Workload{Name: "vllm", Replicas: 4, Size: 2, Rolling: r}}
}

// TestAdoptedSavesNoHold checks that the hold is never saved as the user's configuration: after Disown the workload would
// not roll any more.
func TestAdoptedSavesNoHold(t *testing.T) {
	hold := *record.Hold().Partition
	for _, tt := range []struct {
		name, reason string
		found, want  rolling
		warns        bool
	}{
		{"user's", "as it is", settings(3, "25%", "1"), settings(3, "25%", "1"), false},
		{"LWS's defaults", "as they are", settings(0, "1", "0"), settings(0, "1", "0"), false},
		{"hold", "the record was removed", record.Hold(), settings(0, "1", "0"), true},
		{"edited hold", "what was set since is the user's", settings(hold, "2", "10%"), settings(0, "2", "10%"), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := holding(tt.found)
			got := NewRecord(o).Saved
			assert.True(t, record.SameRolling(got, tt.want), "%s: saved %+v, want %+v", tt.reason, got, tt.want)
			if got := foundHeld(o); (len(got) > 0) != tt.warns {
				t.Errorf("warnings %v, want some: %t", got, tt.warns)
			}
		})
	}
	o := holding(record.Hold())
	o.Record = &record.Record{Saved: settings(2, "2", "2")}
	got := NewRecord(o)
	assert.True(t, record.SameRolling(got.Saved, o.Record.Saved) && len(foundHeld(o)) == 0, "an existing record became %+v", got)
}

func TestCheckRestoreRolling(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		saved, found rolling
		replicas     int
		ok           bool
	}{
		{"counts", "never 0", settings(0, "1", "0"), record.Hold(), 1, true},
		{"enough groups", "25% of 4", settings(0, "25%", "0"), record.Hold(), 4, true},
		{"scaled down", "25% of 3", settings(0, "25%", "0"), record.Hold(), 3, false},
		{"surges", "rounds up", settings(0, "25%", "10%"), record.Hold(), 3, true},
		{"no groups", "LWS accepts it", settings(0, "25%", "0%"), record.Hold(), 0, true},
		{"set meanwhile", "as the error advises", settings(0, "25%", "0"), settings(*record.Hold().Partition, "2", "0"), 3, true},
		{"surge set meanwhile", "as well", settings(0, "25%", "0"), settings(*record.Hold().Partition, "1", "1"), 3, true},
		{"partition kept", "it is the user's", settings(2, "1", "0"), record.Hold(), 3, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := holding(tt.found)
			o.Stable.Replicas = tt.replicas
			o.Record = &record.Record{Saved: tt.saved}
			err := checkRestoreRolling(o, Saved(o))
			require.Equal(t, tt.ok, err == nil, "%s: %v", tt.reason, err)
			if err == nil {
				return
			}
			got := drivererr.Reason(err)
			assert.Equal(t, pb.ErrorReason_ERROR_REASON_REJECTED, got, "reason %s, want REJECTED", got)
			for _, want := range []string{"25%", "3 groups", "maxUnavailable", "maxSurge", "Scale it up", "Disown again"} {
				assert.ErrorContains(t, err, want)
			}
		})
	}
}

// A hold deletes surge groups at once. So neither an undo nor Adopt sets the first one while LWS lacks groups that ready surge groups stand in for.
func TestFirstHoldKeepsSurge(t *testing.T) {
	for name, intent := range map[string]Intent{"adopt": Adopt{}, "undo": Undo{Revision: "a"}} {
		for _, tt := range []struct {
			name    string
			group   Group // the last one of two
			surge   bool  // the surge group is ready
			refused bool
		}{
			{"LWS replaces a group", Group{Index: 1, Leader: "vllm-1", Revision: "b"}, true, true},
			{"all groups are ready", Group{Index: 1, Leader: "vllm-1", Revision: "a", Ready: true, Serving: true}, true, false},
			{"the surge group is not ready", Group{Index: 1, Leader: "vllm-1", Revision: "b"}, false, false},
		} {
			o := held("b", "a", recorded(Entry{Revision: "a", Number: 1, At: ago("1h")}))
			o.Record, o.Stable.Replicas, o.Stable.Rolling = nil, 2, settings(0, "0", "1")
			o.Stable.Groups = append(o.Stable.Groups, tt.group, Group{Index: 2, Leader: "vllm-2", Revision: "b", Ready: tt.surge})
			if err := refusal(Judge(o), intent); (drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_NOT_SYNCED) != tt.refused {
				t.Errorf("%s while %s: %v, want a refusal: %t", name, tt.name, err, tt.refused)
			}
		}
	}
}

// A rollback that restarts do not complete can be given up, as its message says, once nothing but its groups is left of the release.
func TestDisownGivesUpAFailedRollback(t *testing.T) {
	for _, tt := range []struct {
		name, more string
		accepted   bool
	}{
		{"restarted in vain", "groups 3 revision=B ready=2s restarts=3", true},
		{"about to be restarted", "groups 3 revision=B ready=2s", false},
		{"its canary exists", "groups 3 revision=B ready=2s restarts=3\ncanary vllm-b replicas=1 carries=B", false},
		{"its requests are routed", "groups 3 revision=B ready=2s restarts=3\ntraffic isolated prepared stable=3 pods=3", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := observed(t, `policy style=PARTITION
workload vllm replicas=4 revision=C hold
record phase=RollingBack stable=A update=B since=1m set=hold
groups 0-2 revision=A ready=2h
`+tt.more)
			d, err := Decide(o, Disown{})
			_, accepted := d.Action.(RemoveRecord)
			assert.True(t, accepted == tt.accepted && accepted != (err != nil), "%v, %v", d.Action, err)
			if promised := strings.Contains(reconcile(o).Message, "or disown"); promised != tt.accepted {
				t.Errorf("the message is %q", reconcile(o).Message)
			}
		})
	}
}
