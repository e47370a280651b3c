// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"cmp"
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
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
