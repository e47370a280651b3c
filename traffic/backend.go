// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import "k8s.io/apimachinery/pkg/runtime"

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
