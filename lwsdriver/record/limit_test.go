// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

func TestHistoryLimit(t *testing.T) {
	for value, want := range map[string]int{"0": 0, "1": 1, "100": 100, "": -1, "-1": -1, "101": -1, "ten": -1, "1.5": -1} {
		got, err := HistoryLimit(map[string]string{HistoryLimitAnnotation: value})
		assert.False(t, want < 0 && (err == nil || got != DefaultHistoryLimit) || want >= 0 && (err != nil || got != want),
			"%q: %d, %v", value, got, err)
	}
	got, err := HistoryLimit(nil)
	assert.True(t, got == DefaultHistoryLimit && err == nil, "nothing: %d, %v", got, err)
}

// The owner of a release is an object of any name that Kubernetes accepts: a shorter limit refused what a user can't shorten.
func TestLimitOfOwners(t *testing.T) {
	for _, prefix := range []string{"argo-rollouts/", "kruise-rollouts/", "kruise-batchrelease/"} {
		n := len(prefix) + validation.DNS1123LabelMaxLength + len("/") + validation.DNS1123SubdomainMaxLength
		assert.LessOrEqual(t, n, MaxOwner, "an owner of %s has up to %d bytes, more than %d", prefix, n, MaxOwner)
	}
}

// A host's user wrote steps, not the batches of a policy: the message says what to change.
func TestTooManyBatches(t *testing.T) {
	_, bad := ParsePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: slices.Repeat([]string{"1"}, MaxBatches+1)})
	assert.True(t, len(bad) == 1 && bad[0].Field == "policy.batches" && strings.Contains(bad[0].Description, "200 that are possible: use fewer"),
		"it is refused with %v", bad)
}

// A record at every limit fits the annotations of an object, so that an abort can be written: whatever the characters.
func TestLimitsFitAnnotations(t *testing.T) {
	t.Parallel()
	for _, c := range []string{"v", "<", "&", `"`, `\`} {
		policy, err := EncodePolicy(&pb.ReleasePolicy{
			Style: pb.Style_STYLE_CANARY, Batches: slices.Repeat([]string{"100%"}, MaxBatches),
			CanaryLeaderMetadata: &pb.PodMetadata{Annotations: map[string]string{"a": strings.Repeat(c, MaxLeaderMetadata-1)}},
		})
		assert.NoError(t, err)
		r := &Record{Saved: rolling(0, "1", "0"), Release: &Release{
			ID: "r-1", Phase: CleaningUp, Policy: policy, EndMessage: strings.Repeat(c, MaxEndMessage),
			Waiting: Waiting{For: strings.Repeat(c, MaxWaiting), Overwritten: strings.Repeat(c, MaxWaiting)}, Traffic: &Traffic{},
		}}
		for i := range 15 {
			r.Release.Traffic.SetHeaderRoute(traffic.HeaderRoute{
				Name: fmt.Sprintf("r-%02d", i), Matches: []traffic.HeaderMatch{{Name: "x", Value: strings.Repeat(c, 4096)}},
			})
		}
		for i := range MaxGivenUp {
			r.Release.GivenUp = append(r.Release.GivenUp, 10_000+i)
		}
		value := encoded(t, r)
		assert.Less(t, len(value), 256<<10, c)
		got, err := DecodeRecord(value)
		assert.NoError(t, err, c)
		assert.Equal(t, r, got, c)
		// An earlier driver escaped characters of HTML.
		escaped, err := json.Marshal(r)
		assert.NoError(t, err)
		got, err = DecodeRecord(string(escaped))
		assert.NoError(t, err, c)
		assert.Equal(t, r.Release.Traffic, got.Release.Traffic, c)
	}
}

// TestLimits: a request and a record at a limit are accepted, and refused above it.
func TestLimits(t *testing.T) {
	policy := func(change func(*pb.ReleasePolicy, int)) func(int) error {
		return func(more int) error {
			p := &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1"}}
			change(p, more)
			if _, bad := ParsePolicy(p); len(bad) > 0 {
				return fmt.Errorf("%s %s", bad[0].Field, bad[0].Description)
			}
			return nil
		}
	}
	release := func(change func(*Release, int)) func(int) error {
		return func(more int) error {
			raw, err := EncodePolicy(&pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"1"}})
			if err != nil {
				return err
			}
			r := &Record{Saved: rolling(0, "1", "0"), Release: &Release{ID: "r-1", Phase: Progressing, Policy: raw}}
			change(r.Release, more)
			_, err = DecodeRecord(encoded(t, r))
			return err
		}
	}
	headers := func(n, size int) []traffic.HeaderRoute {
		var all []traffic.HeaderRoute
		for i := range n {
			all = append(all, traffic.HeaderRoute{Name: fmt.Sprintf("r-%02d", i), Matches: []traffic.HeaderMatch{{Name: "x", Value: strings.Repeat("v", size)}}})
		}
		return all
	}
	for name, accepts := range map[string]func(more int) error{
		"batches": policy(func(p *pb.ReleasePolicy, more int) { p.Batches = slices.Repeat([]string{"1"}, MaxBatches+more) }),
		"metadata": policy(func(p *pb.ReleasePolicy, more int) {
			p.CanaryLeaderMetadata = &pb.PodMetadata{Annotations: map[string]string{"a": strings.Repeat("v", MaxLeaderMetadata-1+more)}}
		}),
		"routes": policy(func(p *pb.ReleasePolicy, more int) {
			p.Traffic = &pb.TrafficPolicy{StableService: "s", HttpRoutes: []string{"r"}}
			for i := range traffic.MaxRoutes - 1 + more {
				p.Traffic.GrpcRoutes = append(p.Traffic.GrpcRoutes, fmt.Sprintf("g-%d", i))
			}
		}),
		"owner":    release(func(r *Release, more int) { r.Owner = strings.Repeat("o", MaxOwner+more) }),
		"message":  release(func(r *Release, more int) { r.EndMessage = strings.Repeat("m", MaxEndMessage+more) }),
		"wait":     release(func(r *Release, more int) { r.Waiting.For = strings.Repeat("w", MaxWaiting+more) }),
		"writer":   release(func(r *Release, more int) { r.Waiting.Overwritten = strings.Repeat("w", MaxWaiting+more) }),
		"replicas": release(func(r *Release, more int) { r.Replicas = maxCount + more }),
		"groups":   release(func(r *Release, more int) { r.Groups = maxCount + more }),
		"header routes": release(func(r *Release, more int) {
			r.Traffic = &Traffic{HeaderRoutes: headers(traffic.MaxHeaderRoutes+more, 1)}
		}),
		"header bytes": release(func(r *Release, more int) {
			r.Traffic = &Traffic{HeaderRoutes: headers(15, 4096-len("r-00")-len("x"))}
			first := &r.Traffic.HeaderRoutes[0].Matches
			*first = append(*first, traffic.HeaderMatch{Name: "y" + strings.Repeat("y", more), Value: strings.Repeat("v", 4095)})
		}),
		"given up": release(func(r *Release, more int) {
			for i := range MaxGivenUp + more {
				r.GivenUp = append(r.GivenUp, i)
			}
		}),
		"given up twice": release(func(r *Release, more int) { r.GivenUp = []int{1, 2 - more} }),
	} {
		assert.NoError(t, accepts(0), "%s at the limit", name)
		assert.Error(t, accepts(1), "%s above the limit is accepted", name)
	}
}

func TestCanaryName(t *testing.T) {
	tests := []struct{ name, reason, workload, object, revision, want string }{
		{"Hash", "A prefix of the hash tells releases apart.", "vllm", "vllm", "5d9f8c7b66", "vllm-5d9f8c"},
		{"ShortHash", "LWS's hash has no fixed length.", "vllm", "vllm", "5d9", "vllm-5d9"},
		{"Exact", "Nothing to cut.", "vllm", "vllm", "5d9f8c", "vllm-5d9f8c"},
		{"Adopted", "Names do not grow with each release.", "vllm", "vllm-77c4b6", "5d9f8c7b66", "vllm-5d9f8c"},
		{"Alike", "Two objects can't have one name.", "vllm", "vllm-5d9f8c", "5d9f8c7b66", "vllm-5d9f8x"},
		{"AlikeAgain", "Whatever the name ends with.", "vllm", "vllm-5d9f8x", "5d9f8x7b66", "vllm-5d9f8z"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			assert.Equal(t, tc.want, CanaryName(tc.workload, tc.object, tc.revision),
				"%s\nCanaryName(%q, %q, %q)", tc.reason, tc.workload, tc.object, tc.revision)
		})
	}
}

// statefulSetHash is the longest that StatefulSet appends to its name in controller-revision-hash: an encoded uint32.
var statefulSetHash = strings.Repeat("f", len(fmt.Sprint(uint32(math.MaxUint32))))

// TestMaxStableName holds every name that Kubernetes derives from a canary of a longest stable name against the check
// that Kubernetes itself makes of it.
func TestMaxStableName(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		replicas := rapid.OneOf(rapid.IntRange(0, 101), rapid.IntRange(0, 1_000_000)).Draw(t, "replicas")
		size := rapid.IntRange(1, math.MaxInt32/max(replicas, 1)).Draw(t, "size")
		stable := "v" + strings.Repeat("x", MaxStableName(replicas)-1)
		canary := CanaryName(stable, stable, "0123456789")
		check := func(what, name string, problems []string) {
			if len(problems) > 0 {
				t.Errorf("%s %q of %d characters: %v", what, name, len(name), problems)
			}
		}
		check("workload and headless Service", canary, validation.IsDNS1035Label(canary))
		leader := fmt.Sprintf("%s-%d", canary, max(replicas-1, 0))
		check("leader pod and worker StatefulSet", leader, validation.IsDNS1123Label(leader))
		worker := fmt.Sprintf("%s-%d", leader, size-1)
		check("worker pod's pod-name label and hostname", worker, validation.IsDNS1123Label(worker))
		for _, set := range []string{canary, leader} {
			hash := set + "-" + statefulSetHash
			check("controller-revision-hash label", hash, validation.IsValidLabelValue(hash))
		}
	})
}

func TestMaxStableNameIsTight(t *testing.T) {
	for _, replicas := range []int{0, 1, 10, 11, 1000} {
		stable := "v" + strings.Repeat("x", MaxStableName(replicas))
		label := fmt.Sprintf("%s-%d-%s", CanaryName(stable, stable, "0123456789"), max(replicas-1, 0), statefulSetHash)
		assert.NotEmpty(t, validation.IsValidLabelValue(label), "%d replicas: one character more than MaxStableName would still do", replicas)
	}
}
