// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/runtime"
)

// object is a JSON object of a route, as it is in the cluster.
type object = map[string]any

// backend is a pair of things that a backendRef can name: the one that serves and the one that a release adds.
type backend struct {
	group, kind    string // Gateway API's defaults are "" and Service
	namespace      string
	stable, canary string
}

func (b backend) isStable(ref object) bool { return b.names(ref, b.stable) }
func (b backend) isCanary(ref object) bool { return b.names(ref, b.canary) }

func (b backend) names(ref object, name string) bool {
	return text(ref, "group", "") == b.group && text(ref, "kind", KindService) == b.kind &&
		text(ref, "namespace", b.namespace) == b.namespace && text(ref, "name", "") == name
}

// text is a string in a JSON object.
func text(o object, key, missing string) string {
	if s, ok := o[key].(string); ok {
		return s
	}
	return missing
}

// number is a whole number in a JSON object. A client decodes it to int64, other sources to float64.
func number(o object, key string, missing int64) int64 {
	switch n := o[key].(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return missing
}

// list are the objects of a JSON list. Others, which a schema does not allow, are left out.
func list(o object, key string) []object {
	raw, _ := o[key].([]any)
	out := make([]object, 0, len(raw))
	for _, item := range raw {
		if m, ok := item.(object); ok {
			out = append(out, m)
		}
	}
	return out
}

// setList puts a list back; an empty one leaves the key out.
func setList(o object, key string, items []object) {
	if len(items) == 0 {
		delete(o, key)
		return
	}
	o[key] = anys(items)
}

func anys(items []object) []any {
	raw := make([]any, 0, len(items))
	for _, item := range items {
		raw = append(raw, item)
	}
	return raw
}

func clone(o object) object { return runtime.DeepCopyJSON(o) }

const (
	// scale is the factor by which weights grow while a rule is split, so that each percentage is a whole number.
	scale = 100
	// gatewayMaxWeight is the Gateway API's own limit.
	gatewayMaxWeight = 1_000_000
	// MaxWeight is the largest weight of a backendRef in a rule that can be split.
	MaxWeight = gatewayMaxWeight / scale
)

func weightOf(ref object) int64 { return number(ref, "weight", 1) }

// serves says whether requests reach the stable side through a rule with these refs.
func (b backend) serves(refs []object) bool {
	for _, ref := range refs {
		if b.isStable(ref) && weightOf(ref) > 0 {
			return true
		}
	}
	return false
}

// split gives the canary its share of each ref to the stable side. A ref that would get weight 0 is left out: gateways
// leak requests to it. The proportions of all other refs stay exactly as they are.
func (b backend) split(refs []object, weight int) ([]object, error) {
	if weight == 0 || !b.serves(refs) {
		return refs, nil
	}
	share := int64(weight)
	out := make([]object, 0, len(refs)+1)
	for _, ref := range refs {
		n := weightOf(ref)
		if n > MaxWeight {
			return nil, fmt.Errorf("the backendRef to %s has weight %d: weights above %d can't be split into percentages, divide all weights of its rule",
				text(ref, "name", ""), n, MaxWeight)
		}
		kept := clone(ref)
		kept["weight"] = scale * n
		if !b.isStable(ref) || n == 0 {
			out = append(out, kept)
			continue
		}
		if share < scale {
			kept["weight"] = (scale - share) * n
			out = append(out, kept)
		}
		canary := clone(ref)
		canary["name"], canary["weight"] = b.canary, share*n
		out = append(out, canary)
	}
	return out, nil
}

// merge is the inverse of split. Where somebody changed weights of a rule that was split, so that they are no multiples
// of the scale, the proportions stay and the numbers are as they left them.
func (b backend) merge(refs []object) []object {
	ours, exact := false, true
	for _, ref := range refs {
		ours = ours || b.isCanary(ref)
	}
	if !ours {
		return refs
	}
	out := make([]object, 0, len(refs))
	open := false // whether the last of out is a stable ref that awaits its canary half
	for _, ref := range refs {
		ref = clone(ref)
		if !b.isCanary(ref) {
			out = append(out, ref)
			open = b.isStable(ref) && weightOf(ref) > 0
			continue
		}
		ref["name"] = b.stable
		if open && sameButWeight(out[len(out)-1], ref) {
			last := out[len(out)-1]
			last["weight"] = weightOf(last) + weightOf(ref)
		} else {
			out = append(out, ref)
		}
	}
	for _, ref := range out {
		exact = exact && weightOf(ref)%scale == 0
	}
	if exact {
		for _, ref := range out {
			ref["weight"] = weightOf(ref) / scale
		}
	}
	return out
}

func sameButWeight(a, b object) bool {
	a, b = clone(a), clone(b)
	delete(a, "weight")
	delete(b, "weight")
	return reflect.DeepEqual(a, b)
}

// share is the canary's percentage of what a rule gives to both sides, rounded up.
func (b backend) share(refs []object) int {
	var stable, canary int64
	for _, ref := range refs {
		switch {
		case b.isStable(ref):
			stable += weightOf(ref)
		case b.isCanary(ref):
			canary += weightOf(ref)
		}
	}
	if canary == 0 {
		return 0
	}
	return int((100*canary + stable + canary - 1) / (stable + canary))
}

// onCanary are a rule's refs to the stable side, leading to the canary.
func (b backend) onCanary(refs []object) []object {
	out := make([]object, 0, len(refs))
	for _, ref := range refs {
		if b.isStable(ref) && weightOf(ref) > 0 {
			ref = clone(ref)
			ref["name"] = b.canary
			out = append(out, ref)
		}
	}
	return out
}
