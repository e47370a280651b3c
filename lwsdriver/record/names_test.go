// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"
)

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
