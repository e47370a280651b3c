// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
)

// object is a JSON object of a route or a pool.
type object = map[string]any

// backend is a pair of backendRef targets: the user's and the one that a release adds.
type backend struct {
	group, kind    string // Gateway API's defaults are "" and Service
	namespace      string
	stable, canary string
	others         []string // canaries of other releases, from CanariesAnnotation of the route
	http           bool     // the route is an HTTPRoute
}

func (b backend) isStable(ref object) bool { return b.names(ref, b.stable) }
func (b backend) isCanary(ref object) bool { return b.names(ref, b.canary) }

func (b backend) names(ref object, name string) bool {
	return stringField(ref, "group", "") == b.group && stringField(ref, "kind", KindService) == b.kind &&
		stringField(ref, "namespace", b.namespace) == b.namespace && stringField(ref, "name", "") == name
}

// key names the canary in CanariesAnnotation: "Service/vllm-canary".
func (b backend) key() string { return b.kind + "/" + b.canary }

// isShared reports whether another release splits a rule with these refs.
func (b backend) isShared(refs []object) bool {
	return slices.ContainsFunc(refs, func(ref object) bool {
		return stringField(ref, "namespace", b.namespace) == b.namespace &&
			slices.Contains(b.others, stringField(ref, "kind", KindService)+"/"+stringField(ref, "name", ""))
	})
}

// stringField returns a string field of a JSON object, or the default if it is missing.
func stringField(o object, key, byDefault string) string {
	if s, ok := o[key].(string); ok {
		return s
	}
	return byDefault
}

// intField returns an integer field of a JSON object, or the default if it is missing. A client decodes it to int64, other
// sources to float64.
func intField(o object, key string, byDefault int64) int64 {
	switch n := o[key].(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return byDefault
}

// objectList returns the objects of a JSON list. Items of another type, which a schema does not allow, are skipped.
func objectList(o object, key string) []object {
	raw, _ := o[key].([]any)
	out := make([]object, 0, len(raw))
	for _, item := range raw {
		if m, ok := item.(object); ok {
			out = append(out, m)
		}
	}
	return out
}

// setObjectList sets a list; an empty one removes the key.
func setObjectList(o object, key string, items []object) {
	if len(items) == 0 {
		delete(o, key)
		return
	}
	o[key] = anySlice(items)
}

func anySlice(items []object) []any {
	raw := make([]any, 0, len(items))
	for _, item := range items {
		raw = append(raw, item)
	}
	return raw
}

func cloneObject(o object) object { return runtime.DeepCopyJSON(o) }

const (
	// scale multiplies the weights of a split rule, so that each percentage is an integer. Releases that share a rule have
	// one scale: the first multiplies the weights, the last one to end divides them.
	scale = 100
	// gatewayMaxWeight and gatewayMaxRefs are the Gateway API's own limits.
	gatewayMaxWeight = 1_000_000
	gatewayMaxRefs   = 16
	// MaxWeight is the largest weight of a backendRef in a rule that can be split.
	MaxWeight = gatewayMaxWeight / scale
)

func weightOf(ref object) int64 { return intField(ref, "weight", 1) }

// serves reports whether a rule with these refs sends requests to the stable backend.
func (b backend) serves(refs []object) bool {
	return slices.ContainsFunc(refs, b.isServing)
}

// isServing reports whether a ref sends requests to the stable backend.
func (b backend) isServing(ref object) bool { return b.isStable(ref) && weightOf(ref) > 0 }

// split gives the canary its share of each ref to the stable backend. A ref that would have weight 0 is left out: gateways
// leak requests to it. The proportions of all other refs are unchanged. The factor is that of merge.
func (b backend) split(refs []object, weight int, factor int64) ([]object, error) {
	if weight == 0 || !b.serves(refs) {
		return refs, nil
	}
	share := int64(weight)
	out := make([]object, 0, len(refs)+1)
	for _, ref := range refs {
		n := weightOf(ref)
		switch {
		case n < 0:
			return nil, fmt.Errorf("the backendRef to %s has weight %d: weights must not be negative", stringField(ref, "name", ""), n)
		case n > gatewayMaxWeight/factor && b.isShared(refs):
			// In a shared rule the factor is above 1 only if a user has changed the stable weight since, see merge.
			return nil, fmt.Errorf("other releases (%s) have multiplied the weights of the rule by %d, and the weight of %s was changed to no multiple of %d since: "+
				"apply the route again, or wait until the other releases have ended", strings.Join(b.others, ", "), scale, b.stable, scale)
		case n > gatewayMaxWeight/factor:
			return nil, fmt.Errorf("the backendRef to %s has weight %d: weights above %d can't be split into percentages, divide all weights of its rule",
				stringField(ref, "name", ""), n, MaxWeight)
		}
		kept := cloneObject(ref)
		kept["weight"] = factor * n
		if !b.isStable(ref) || n == 0 {
			out = append(out, kept)
			continue
		}
		if share < scale {
			kept["weight"] = (scale - share) * n * factor / scale
			out = append(out, kept)
		}
		// The canary's ref is a copy, so that the port and the filters of the user's ref apply to its requests too.
		canary := cloneObject(ref)
		canary["name"], canary["weight"] = b.canary, share*n*factor/scale
		out = append(out, canary)
	}
	if len(out) > gatewayMaxRefs {
		return nil, fmt.Errorf("a rule with %s and %s would have %d backendRefs, more than the %d that are possible: remove one, or wait until other releases that split the rule have ended",
			b.stable, b.canary, len(out), gatewayMaxRefs)
	}
	return out, nil
}

// merge is the inverse of split. It does not divide the weights while another release splits the rule, or if a user changed
// one to a value that is no multiple of scale: the proportions are kept. split must multiply the weights by factor: 1 if they
// are multiplied already, unless the stable backend's weight has no integer percentages.
func (b backend) merge(refs []object) (out []object, factor int64) {
	multiplied := b.isShared(refs)
	if slices.ContainsFunc(refs, b.isCanary) {
		refs = b.unsplit(refs)
		if !multiplied && !slices.ContainsFunc(refs, isIndivisible) {
			// unsplit has copied the refs, so the route in the cache stays unchanged.
			for _, ref := range refs {
				ref["weight"] = weightOf(ref) / scale
			}
			return refs, scale
		}
		// A weight that is no multiple was edited during the release. A division would round it and change the proportions.
		multiplied = true
	}
	if multiplied && !slices.ContainsFunc(refs, func(ref object) bool { return b.isStable(ref) && isIndivisible(ref) }) {
		return refs, 1
	}
	return refs, scale
}

func isIndivisible(ref object) bool { return weightOf(ref)%scale != 0 }

// unsplit returns copies of the refs in which those to the canary lead to the stable backend.
func (b backend) unsplit(refs []object) []object {
	out := make([]object, 0, len(refs))
	unpaired := false // the last of out is a stable ref whose canary counterpart may follow
	for _, ref := range refs {
		ref = cloneObject(ref)
		if !b.isCanary(ref) {
			out = append(out, ref)
			unpaired = b.isServing(ref)
			continue
		}
		ref["name"] = b.stable
		// Two stable refs of a user, for example with different ports, must not become one.
		if unpaired && sameButWeight(out[len(out)-1], ref) {
			last := out[len(out)-1]
			last["weight"] = weightOf(last) + weightOf(ref)
		} else {
			// At 100 % split leaves out the stable ref, so this ref takes its place.
			out = append(out, ref)
		}
	}
	return out
}

func sameButWeight(a, b object) bool {
	a, b = cloneObject(a), cloneObject(b)
	delete(a, "weight")
	delete(b, "weight")
	return reflect.DeepEqual(a, b)
}

// canaryPercent returns the canary's percentage of a rule's requests to both backends, rounded up.
func (b backend) canaryPercent(refs []object) int {
	var stable, canary int64
	for _, ref := range refs {
		weight := min(max(weightOf(ref), 0), gatewayMaxWeight) // the API server need not have the Gateway API's own limits
		switch {
		case b.isStable(ref):
			stable += weight
		case b.isCanary(ref):
			canary += weight
		}
	}
	if canary == 0 {
		return 0
	}
	// Rounded down, a small share would count as withdrawn while requests still reach the canary.
	return int((100*canary + stable + canary - 1) / (stable + canary))
}

// canaryRefs returns copies of the refs to the stable backend that lead to the canary.
func (b backend) canaryRefs(refs []object) []object {
	out := make([]object, 0, len(refs))
	for _, ref := range refs {
		if b.isServing(ref) {
			ref = cloneObject(ref)
			ref["name"] = b.canary
			out = append(out, ref)
		}
	}
	return out
}
