// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func settings(partition int32, maxUnavailable, maxSurge string) lws.RollingUpdateConfiguration {
	return lws.RollingUpdateConfiguration{
		Partition: ptr.To(partition), MaxUnavailable: intstr.Parse(maxUnavailable), MaxSurge: intstr.Parse(maxSurge),
	}
}

// What is in the way of a give-back is told by Disown itself, and nothing is written.
func TestDisownOfPercentagesThatCountToNothing(t *testing.T) {
	w := withRecord(t, stableWorkload(), record.Record{Saved: settings(0, "10%", "0%")})
	b := newBed(t, w)
	b.run()
	b.eventually("the driver serves", b.Synced)
	request := &pb.DisownRequest{Workload: &pb.WorkloadRef{Namespace: w.Namespace, Name: w.Name}}
	_, err := b.Disown(t.Context(), request)
	if got := drivererr.Reason(err); got != pb.ErrorReason_ERROR_REASON_REJECTED {
		t.Errorf("Disown: %v", err)
	}
	if got := b.writes(); len(got) > 0 {
		t.Errorf("writes %q", got)
	}
}

// A record that can't be read is not the end: its error says how to get out, hold included.
func TestInvalidRecordSaysTheWayOut(t *testing.T) {
	b := newBed(t, stableWorkload()) // its record is "{}"
	_, err := b.engine.Observer.Observe(vllm)
	if got := drivererr.Reason(err); got != pb.ErrorReason_ERROR_REASON_RECORD_INVALID {
		t.Errorf("reason %s, want RECORD_INVALID", got)
	}
	says(t, err, record.RecordAnnotation, "Restore", "remove", "partition 1000000", "Adopt", "Disown")
}

// What the admission policy noted counts as saved, and Disown gives it back and leaves no note; a note that somebody
// edited is reported.
func TestWantedIsGivenBack(t *testing.T) {
	w := withRecord(t, stableWorkload(), record.Record{Saved: settings(0, "1", "0")})
	w.Spec.RolloutStrategy.RollingUpdateConfiguration = ptr.To(record.Hold())
	w.Annotations[record.WantedMaxSurge] = "50%"
	b := newBed(t, w)
	s := b.look()
	if want := settings(0, "1", "50%"); !record.SameRolling(s.Record.Saved, want) {
		t.Errorf("saved is %+v, want %+v", s.Record.Saved, want)
	}
	b.run()
	b.eventually("the driver serves", b.Synced)
	if _, err := b.Disown(t.Context(), &pb.DisownRequest{Workload: &pb.WorkloadRef{Namespace: w.Namespace, Name: w.Name}}); err != nil {
		t.Fatal(err)
	}
	got, err := b.sets.LeaderworkersetV1().LeaderWorkerSets(w.Namespace).Get(t.Context(), w.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations[record.WantedMaxSurge]+got.Annotations[record.RecordAnnotation] != "" {
		t.Errorf("Disown leaves %v", got.Annotations)
	}
	if c := rollingOf(got); !record.SameRolling(c, settings(0, "1", "50%")) {
		t.Errorf("Disown gives %+v back", c)
	}
	w.Annotations[record.WantedMaxSurge] = "plenty"
	b = newBed(t, w)
	_, err = b.engine.Observer.Observe(vllm)
	if reason := drivererr.Reason(err); reason != pb.ErrorReason_ERROR_REASON_RECORD_INVALID {
		t.Errorf("reason %s, want RECORD_INVALID", reason)
	}
	says(t, err, record.WantedMaxSurge, "plenty", "Remove it")
}
