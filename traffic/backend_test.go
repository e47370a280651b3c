// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// drawRefs draws the backendRefs of a rule: any number of stable refs among foreign ones.
func drawRefs(t *rapid.T, stable ...string) []object {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) object {
		ref := object{
			"group": "", "kind": "Service",
			"name":   rapid.SampledFrom(append([]string{"other", "another"}, stable...)).Draw(t, "name"),
			"port":   int64(rapid.SampledFrom([]int{80, 9090}).Draw(t, "port")),
			"weight": int64(rapid.SampledFrom([]int{0, 1, 1, 2, 3, 7, 50, 99, 100}).Draw(t, "weight")),
		}
		if rapid.Bool().Draw(t, "filtered") {
			ref["filters"] = []any{object{"type": "RequestHeaderModifier"}}
		}
		return ref
	}), 1, 6).Draw(t, "refs")
}

func total(refs []object, of func(object) bool) (sum int64) {
	for _, ref := range refs {
		if of(ref) {
			sum += weightOf(ref)
		}
	}
	return sum
}

// TestSplit: the canary gets exactly its share of the stable backend's weight, all other refs keep theirs, and merge is the
// inverse.
func TestSplit(t *testing.T) {
	b := setupOf("vllm").backend()
	all := func(object) bool { return true }
	rapid.Check(t, func(t *rapid.T) {
		refs, weight := drawRefs(t, "vllm"), rapid.IntRange(0, 100).Draw(t, "weight")
		got, err := b.split(refs, weight, scale)
		require.NoError(t, err)
		before, after := total(refs, all), total(got, all)
		if (before == 0) != (after == 0) {
			t.Fatalf("the rule's total changed from %d to %d", before, after)
		}
		if before > 0 {
			sameFraction(t, "stable and canary together", total(refs, b.isStable), before,
				total(got, b.isStable)+total(got, b.isCanary), after)
			sameFraction(t, "canary", total(refs, b.isStable)*int64(weight), before*100, total(got, b.isCanary), after)
		}
		for _, name := range []string{"other", "another"} {
			of := func(ref object) bool { return stringField(ref, "name", "") == name }
			if before > 0 {
				sameFraction(t, name, total(refs, of), before, total(got, of), after)
			}
		}
		for _, ref := range got {
			if weightOf(ref) == 0 && b.isCanary(ref) || weightOf(ref) > gatewayMaxWeight {
				t.Fatalf("ref %v", ref)
			}
		}
		if weight == 100 && total(got, b.isStable) != 0 {
			t.Fatalf("at 100 %% stable has %d", total(got, b.isStable))
		}
		if b.serves(refs) && b.canaryPercent(got) != weight {
			t.Fatalf("weight %d reads as %d", weight, b.canaryPercent(got))
		}
		merged, _ := b.merge(got)
		if diff := diffJSON(refs, merged); diff != "" {
			t.Fatalf("merge is not the inverse:\n%s", diff)
		}
	})
}

// sameFraction compares a/b and c/d without rounding.
func sameFraction(t *rapid.T, what string, a, b, c, d int64) {
	if big.NewRat(a, b).Cmp(big.NewRat(c, d)) != 0 {
		t.Fatalf("%s: %d of %d became %d of %d", what, a, b, c, d)
	}
}

// TestMergeEditedRefs: whatever a user changed in the refs, merge leaves no ref to the canary and keeps the proportions.
func TestMergeEditedRefs(t *testing.T) {
	b := setupOf("vllm").backend()
	rapid.Check(t, func(t *rapid.T) {
		refs := drawRefs(t, "vllm", "vllm-canary")
		got, _ := b.merge(refs)
		if total(got, b.isCanary) > 0 {
			t.Fatalf("the canary is left in %v", got)
		}
		all := func(object) bool { return true }
		if before := total(refs, all); before > 0 {
			sides := func(ref object) bool { return b.isStable(ref) || b.isCanary(ref) }
			sameFraction(t, "stable", total(refs, sides), before, total(got, b.isStable), total(got, all))
		}
	})
}

// TestSplitLimits: a rule that can't be split is refused with the cause.
func TestSplitLimits(t *testing.T) {
	b := setupOf("vllm").backend()
	b.others = []string{"Service/sglang-canary"}
	ref := func(name string, weight int64) object { return object{"name": name, "weight": weight} }
	full := make([]object, gatewayMaxRefs)
	for i := range full {
		full[i] = ref("other", 1)
	}
	full[0] = ref("vllm", 1)
	for _, tt := range []struct {
		name string
		refs []object
		says string
	}{
		{"weight above the limit", []object{ref("vllm", MaxWeight+1)}, "divide all weights"},
		{"weight changed while another release splits the rule", []object{ref("vllm", 1), ref("sglang", 900_000), ref("sglang-canary", 100_000)},
			"other releases (Service/sglang-canary) have multiplied"},
		{"no backendRef left", full, "more than the 16"},
	} {
		refs, factor := b.merge(tt.refs)
		if _, err := b.split(refs, 10, factor); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.says)
		}
	}
}

// TestMergeKeepsDistinctRefs: refs that differ in more than their weight, as no split creates, are not merged.
func TestMergeKeepsDistinctRefs(t *testing.T) {
	ref := func(name string, port, weight int64) object {
		return object{"name": name, "port": port, "weight": weight}
	}
	got, _ := setupOf("vllm").backend().merge([]object{ref("vllm", 80, 50), ref("vllm-canary", 90, 50)})
	if diff := diffJSON([]object{ref("vllm", 80, 50), ref("vllm", 90, 50)}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
