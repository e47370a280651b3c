// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// TestParsePolicy runs testdata/policies.txt: each line is a policy, a canary of batches 1 and 100 but for what it says. Below is what is set in the
// parsed policy, or why it is refused.
func TestParsePolicy(t *testing.T) {
	t.Parallel()
	datadriven.RunTest(t, "testdata/policies.txt", func(t *testing.T, d *datadriven.TestData) string {
		var told strings.Builder
		for line := range strings.SplitSeq(d.Input, "\n") {
			policy, bad := ParsePolicy(readPolicy(t, line))
			if len(bad) == 0 {
				fmt.Fprintln(&told, strings.Join(setFields("", reflect.ValueOf(policy)), ", "))
			}
			for _, v := range bad {
				fmt.Fprintf(&told, "%s: %s\n", strings.TrimPrefix(v.Field, "policy."), v.Description)
			}
		}
		return told.String()
	})
	_, bad := ParsePolicy(nil)
	assert.True(t, len(bad) == 1 && bad[0].Field == "policy", "no policy at all: %v", bad)
}

func readPolicy(t *testing.T, line string) *pb.ReleasePolicy {
	t.Helper()
	given := map[string]any{"style": "STYLE_CANARY", "batches": []string{"1", "100"}}
	err := yaml.UnmarshalStrict([]byte("{"+line+"}"), &given)
	raw, errJSON := json.Marshal(given)
	p := &pb.ReleasePolicy{}
	require.NoError(t, cmp.Or(err, errJSON, protojson.Unmarshal(raw, p)), line)
	return p
}

// setFields returns the fields of a struct that are not zero, those of structs in it with their paths.
func setFields(path string, v reflect.Value) (all []string) {
	for i := range v.NumField() {
		name, f := path+v.Type().Field(i).Name, reflect.Indirect(v.Field(i))
		_, isText := v.Field(i).Interface().(encoding.TextMarshaler)
		switch {
		case !f.IsValid() || f.IsZero():
		case f.Kind() == reflect.Struct && !isText:
			all = append(all, setFields(name+".", f)...)
		default:
			all = append(all, fmt.Sprintf("%s: %v", name, f))
		}
	}
	return all
}

// A threshold is a share of the batch's groups, rounded down. A batch of which no group is ready has shown nothing.
func TestThreshold(t *testing.T) {
	for _, tt := range []struct {
		threshold     string
		planned, want int
	}{{"", 4, 0}, {"10%", 9, 0}, {"50%", 3, 1}, {"2", 5, 2}, {"2", 1, 0}, {"100%", 4, 3}, {"100%", 0, 0}} {
		p, bad := ParsePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1"}, FailureThreshold: tt.threshold})
		got := p.Threshold(tt.planned)
		assert.True(t, got == tt.want && len(bad) == 0, "Threshold(%d) of %q = %d, want %d: %v", tt.planned, tt.threshold, got, tt.want, bad)
	}
}

func TestCheckMetadata(t *testing.T) {
	p := Policy{
		LeaderLabels:      map[string]string{"track": "canary", "example.com/a": "", "example.org/b": ""},
		LeaderAnnotations: map[string]string{"example.com/c": ""},
	}
	for _, tt := range []struct {
		name     string
		prefixes []string
		want     []string
	}{
		{"none allowed", nil, []string{"annotations example.com/c", "labels example.com/a", "labels example.org/b", "labels track"}},
		{"a domain", []string{"example.com/"}, []string{"labels example.org/b", "labels track"}},
		{"all of them", []string{"example.com/", "example.org/", "track"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := CheckMetadata(p, tt.prefixes)
			require.Len(t, got, len(tt.want), "want %v", tt.want)
			for i, want := range tt.want {
				field, key, _ := strings.Cut(want, " ")
				assert.True(t, got[i].Field == "policy.canary_leader_metadata."+field && strings.Contains(got[i].Description, `"`+key+`"`) && strings.Contains(got[i].Description, "--canary-metadata-prefix"),
					"violation %d is %v, want %s", i, got[i], want)
			}
		})
	}
	assert.Empty(t, CheckMetadata(Policy{}, nil), "a policy without metadata")
}

// A deadline beyond the driver's bound is refused; a recorded one counts as long as the bound.
func TestOperatorLimits(t *testing.T) {
	b := Limits{ProgressDeadline: time.Hour}
	for _, tt := range []struct {
		deadline, counts time.Duration
		refused          bool
	}{
		{DefaultProgressDeadline, DefaultProgressDeadline, false}, {time.Hour, time.Hour, false}, {time.Hour + 1, time.Hour, true},
	} {
		p := Policy{ProgressDeadline: tt.deadline}
		bad := b.Check(p)
		if refused := len(bad) > 0; refused != tt.refused {
			t.Errorf("%s: %v", tt.deadline, bad)
		} else if refused && (bad[0].Field != "policy.progress_deadline" || !strings.Contains(bad[0].Description, "at most 1h0m0s") ||
			!strings.Contains(bad[0].Description, "--max-progress-deadline")) {
			t.Errorf("%s: %v, want the field, the maximum and the flag", tt.deadline, bad)
		}
		assert.Equal(t, tt.counts, b.Apply(p).ProgressDeadline, "%s counts as", tt.deadline)
	}
	assert.Empty(t, (Limits{}).Check(Policy{ProgressDeadline: math.MaxInt64}), "without a bound")
}

// 25 groups of 4 are all of them, which is rarely meant.
func TestWarnings(t *testing.T) {
	for _, tt := range []struct {
		batches []string
		want    int
	}{{[]string{"25%", "100%"}, 0}, {[]string{"1", "4"}, 0}, {[]string{"25", "100"}, 1}, {[]string{"1", "5"}, 1}} {
		p, bad := ParsePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: tt.batches})
		require.Empty(t, bad)
		assert.Len(t, p.Warnings(4), tt.want, tt.batches)
	}
	p := Policy{Style: pb.Style_STYLE_BLUE_GREEN}
	got := p.Warnings(4)
	assert.True(t, len(got) == 1 && got[0].GetCode() == "RequestsNotSwitched", "blue-green without traffic: %v", got)
	p.Traffic = &traffic.Policy{}
	assert.Empty(t, p.Warnings(4), "blue-green with traffic")
}

// What Up, Down and String are for, FuzzQuantityOf judges for any text and number.
func TestParseQuantity(t *testing.T) {
	for in, want := range map[string]Quantity{
		"3": {value: 3}, "0": {}, "05": {value: 5}, "25%": {25, true}, "0%": {0, true}, "100%": {100, true}, "2147483647": {value: maxCount},
	} {
		got, err := ParseQuantity(in)
		assert.True(t, err == nil && got == want, "ParseQuantity(%q) = %+v, %v; want %+v", in, got, err, want)
	}
	for _, in := range []string{
		// Signs hint at a change, and targets are absolute. Spaces and empty texts are accidents of templates.
		"", "%", "-1", "+1", " 5", "5 ", "5 %", "5%%", "1.5", "12.5%", "101%", "abc", "0x10", "1e3", "٣",
		// More than LWS, or an int, holds must not wrap around.
		"2147483648", "99999999999999999999999", "99999999999999999999999%",
	} {
		got, err := ParseQuantity(in)
		assert.True(t, err != nil && got == (Quantity{}), "ParseQuantity(%q) = %+v, %v", in, got, err)
	}
}

// A first batch of 25 % of 3 must reach a group, and a threshold of 25 % must not.
func TestQuantityOf(t *testing.T) {
	for _, tt := range []struct {
		in              string
		total, up, down int
	}{
		{"25%", 3, 1, 0}, {"25%", 4, 1, 1}, {"33%", 10, 4, 3}, {"1%", 1001, 11, 10}, {"99%", 1, 1, 0}, {"50%", 0, 0, 0}, {"50%", -4, 0, 0},
		{"3", 4, 3, 3}, {"9", 4, 4, 4}, {"9", -1, 0, 0},
	} {
		if q, err := ParseQuantity(tt.in); err != nil || q.Up(tt.total) != tt.up || q.Down(tt.total) != tt.down {
			t.Errorf("%s of %d: up %d, down %d, %v; want %d and %d", tt.in, tt.total, q.Up(tt.total), q.Down(tt.total), err, tt.up, tt.down)
		}
	}
}

// FuzzQuantityOf: a quantity reads as it was written, and is within its bounds for any number of groups.
func FuzzQuantityOf(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string, total int32) {
		q, err := ParseQuantity(s)
		if err != nil {
			assert.Equal(t, Quantity{}, q, "ParseQuantity(%q) = %v beside an error", s, q)
			return
		}
		again, err := ParseQuantity(q.String())
		assert.True(t, err == nil && again == q, "ParseQuantity(%q) = %v, which reads as %v, %v", s, q, again, err)
		most := max(0, int(total))
		up, down := q.Up(int(total)), q.Down(int(total))
		require.True(t, down >= 0 && down <= up && up <= most && up-down <= 1, "%q of %d: up %d, down %d", s, total, up, down)
		more := q.Up(int(total) + 1)
		require.GreaterOrEqual(t, more, up, "%q of %d is %d, of one more %d", s, total, up, more)
		switch {
		case q.percent && q.value == 100 && (up != most || down != most):
			t.Errorf("%q of %d: up %d, down %d", s, total, up, down)
		case q.percent && q.value > 0 && most > 0 && up == 0:
			t.Errorf("%q of %d is rounded to nothing", s, total)
		case !q.percent && up != min(q.value, most):
			t.Errorf("%q of %d: %d", s, total, up)
		}
		n := (Policy{FailureThreshold: q}).Threshold(most)
		assert.False(t, n < 0 || (most > 0 && n >= most), "of %d groups %d may be unready", most, n)
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
		assert.True(t, proto.Equal(before, message), "the policy was changed")
		for _, v := range bad {
			assert.True(t, strings.HasPrefix(v.Field, "policy") && v.Description != "", "violation %+v", v)
		}
		if len(bad) > 0 {
			return
		}
		checkPolicy(t, message, p)
		recorded, err := EncodePolicy(message)
		require.NoError(t, err, "a valid policy can't be recorded")
		back, err := (&Release{Policy: recorded}).PolicyMessage()
		require.NoError(t, err, "what was recorded can't be read: %v\n%s", err, recorded)
		message.ProtoReflect().SetUnknown(nil)
		again, bad := ParsePolicy(back)
		assert.True(t, len(bad) == 0 && len(again.Batches) == len(p.Batches) && again.ProgressDeadline == p.ProgressDeadline && again.MinReady == p.MinReady,
			"%v reads back as %v (%v)", message, back, bad)
	})
}

// checkPolicy checks the guarantees of ParsePolicy independently.
func checkPolicy(t *testing.T, m *pb.ReleasePolicy, p Policy) {
	t.Helper()
	assert.True(t, len(p.Batches) != 0 && len(p.Batches) == len(m.GetBatches()) && p.ProgressDeadline > 0 && p.MinReady >= 0,
		"%v is accepted as %+v", m, p)
	for _, replicas := range []int{0, 1, 7, 100} {
		last := 0
		for _, q := range p.Batches {
			now := q.Up(replicas)
			assert.True(t, now >= last && now <= replicas, "batches of %v: %d after %d, of %d", m, now, last, replicas)
			last = now
		}
	}
	for _, keys := range []map[string]string{p.LeaderLabels, p.LeaderAnnotations} {
		for k := range maps.Keys(keys) {
			assert.False(t, hasAnyPrefix(k, reserved), "%v sets %s", m, k)
		}
	}
	if tr := p.Traffic; tr != nil && (tr.StableService == "" || tr.CanaryService == "" || tr.CanaryService == tr.StableService || len(tr.Routes)+len(tr.Ingresses) == 0) {
		t.Errorf("%v splits nothing: %+v", m, tr)
	}
	assert.True(t, p.Drain.Period >= 0 && p.Drain.Timeout >= 0 && p.WarmUp.Timeout >= 0, "%v waits for %+v, %+v", m, p.Drain, p.WarmUp)
}

// FuzzWanted: the annotations of the admission policy are read as values that LWS accepts, or reported.
func FuzzWanted(f *testing.F) {
	f.Fuzz(func(t *testing.T, partition, maxUnavailable, maxSurge string) {
		saved := rolling(3, "25%", "1")
		got, err := Wanted(saved, map[string]string{WantedPartition: partition, WantedMaxUnavailable: maxUnavailable, WantedMaxSurge: maxSurge})
		if err != nil {
			return
		}
		assert.NoError(t, checkRolling(got), "%q, %q and %q are read as %+v", partition, maxUnavailable, maxSurge, got)
		r := Record{Saved: got}
		again, err := DecodeRecord(encoded(t, &r))
		assert.True(t, err == nil && SameRolling(again.Saved, got), "%+v is recorded as %+v, %v", got, again, err)
	})
}
