// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FuzzQuantityOf: a quantity reads as it was written, and is within its bounds for any number of groups.
func FuzzQuantityOf(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string, total int32) {
		q, err := ParseQuantity(s)
		if err != nil {
			if q != (Quantity{}) {
				t.Errorf("ParseQuantity(%q) = %v beside an error", s, q)
			}
			return
		}
		if again, err := ParseQuantity(q.String()); err != nil || again != q {
			t.Errorf("ParseQuantity(%q) = %v, which reads as %v, %v", s, q, again, err)
		}
		most := max(0, int(total))
		up, down := q.Up(int(total)), q.Down(int(total))
		if down < 0 || down > up || up > most || up-down > 1 {
			t.Fatalf("%q of %d: up %d, down %d", s, total, up, down)
		}
		if more := q.Up(int(total) + 1); more < up {
			t.Fatalf("%q of %d is %d, of one more %d", s, total, up, more)
		}
		switch {
		case q.percent && q.value == 100 && (up != most || down != most):
			t.Errorf("%q of %d: up %d, down %d", s, total, up, down)
		case q.percent && q.value > 0 && most > 0 && up == 0:
			t.Errorf("%q of %d is rounded to nothing", s, total)
		case !q.percent && up != min(q.value, most):
			t.Errorf("%q of %d: %d", s, total, up)
		}
		if n := (Policy{FailureThreshold: q}).Threshold(most); n < 0 || (most > 0 && n >= most) {
			t.Errorf("of %d groups %d may be unready", most, n)
		}
	})
}

// FuzzParsePolicy: a policy is refused with the fields that are wrong, or means the same after it was recorded.
func FuzzParsePolicy(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		message := &pb.ReleasePolicy{}
		if proto.Unmarshal(raw, message) != nil {
			return
		}
		before := proto.CloneOf(message)
		p, bad := ParsePolicy(message)
		if !proto.Equal(before, message) {
			t.Error("the policy was changed")
		}
		for _, v := range bad {
			if !strings.HasPrefix(v.Field, "policy") || v.Description == "" {
				t.Errorf("violation %+v", v)
			}
		}
		if len(bad) > 0 {
			return
		}
		checkPolicy(t, message, p)
		recorded, err := EncodePolicy(message)
		if err != nil {
			t.Fatalf("a valid policy can't be recorded: %v", err)
		}
		back, err := (&Release{Policy: recorded}).PolicyMessage()
		if err != nil {
			t.Fatalf("what was recorded can't be read: %v\n%s", err, recorded)
		}
		message.ProtoReflect().SetUnknown(nil)
		again, bad := ParsePolicy(back)
		if len(bad) > 0 || len(again.Batches) != len(p.Batches) || again.ProgressDeadline != p.ProgressDeadline || again.MinReady != p.MinReady {
			t.Errorf("%v reads back as %v (%v)", message, back, bad)
		}
	})
}

// checkPolicy checks the guarantees of ParsePolicy independently.
func checkPolicy(t *testing.T, m *pb.ReleasePolicy, p Policy) {
	t.Helper()
	if len(p.Batches) == 0 || len(p.Batches) != len(m.GetBatches()) || p.ProgressDeadline <= 0 || p.MinReady < 0 {
		t.Errorf("%v is accepted as %+v", m, p)
	}
	for _, replicas := range []int{0, 1, 7, 100} {
		last := 0
		for _, q := range p.Batches {
			now := q.Up(replicas)
			if now < last || now > replicas {
				t.Errorf("batches of %v: %d after %d, of %d", m, now, last, replicas)
			}
			last = now
		}
	}
	for _, keys := range []map[string]string{p.LeaderLabels, p.LeaderAnnotations} {
		for k := range maps.Keys(keys) {
			if hasAnyPrefix(k, reserved) {
				t.Errorf("%v sets %s", m, k)
			}
		}
	}
	if tr := p.Traffic; tr != nil && (tr.StableService == "" || tr.CanaryService == "" || tr.CanaryService == tr.StableService || len(tr.Routes)+len(tr.Ingresses) == 0) {
		t.Errorf("%v splits nothing: %+v", m, tr)
	}
	if p.Drain.Period < 0 || p.Drain.Timeout < 0 || p.WarmUp.Timeout < 0 {
		t.Errorf("%v waits for %+v, %+v", m, p.Drain, p.WarmUp)
	}
}

// FuzzWanted: the annotations of the admission policy are read as values that LWS accepts, or reported.
func FuzzWanted(f *testing.F) {
	f.Fuzz(func(t *testing.T, partition, maxUnavailable, maxSurge string) {
		saved := rolling(3, "25%", "1")
		got, err := Wanted(saved, map[string]string{WantedPartition: partition, WantedMaxUnavailable: maxUnavailable, WantedMaxSurge: maxSurge})
		if err != nil {
			return
		}
		if err := checkRolling(got); err != nil {
			t.Errorf("%q, %q and %q are read as %+v: %v", partition, maxUnavailable, maxSurge, got, err)
		}
		r := Record{Saved: got}
		again, err := DecodeRecord(encoded(t, &r))
		if err != nil || !SameRolling(again.Saved, got) {
			t.Errorf("%+v is recorded as %+v, %v", got, again, err)
		}
	})
}
