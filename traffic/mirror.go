// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

// filterMirror is the type of a filter that copies requests, the same for HTTPRoute and GRPCRoute.
const filterMirror = "RequestMirror"

// mirrors says whether a filter copies requests to the canary.
func (b backend) mirrors(filter object) bool { return mirrorsTo(filter, b.isCanary) }

func mirrorsTo(filter object, side func(ref object) bool) bool {
	mirror, _ := filter["requestMirror"].(object)
	ref, _ := mirror["backendRef"].(object)
	return text(filter, "type", "") == filterMirror && ref != nil && side(ref)
}

// mirror makes the rule copy a percentage of its requests to the canary, or none. A filter of ours stays where it is
// among the others, so that several releases that share a rule agree about their order.
func (b backend) mirror(rule object, refs []object, percent int) {
	filters, kept, found := list(rule, "filters"), []object{}, false
	for _, f := range filters {
		switch {
		case !b.mirrors(f):
			kept = append(kept, f)
		case percent > 0 && !found:
			kept, found = append(kept, b.mirrorFilter(refs, percent)), true
		}
	}
	if percent > 0 && !found {
		kept, found = append(kept, b.mirrorFilter(refs, percent)), true
	}
	if found || len(kept) != len(filters) {
		setList(rule, "filters", kept)
	}
}

// mirrorFilter leads to where the first of the rule's refs to the stable side would, on the canary.
func (b backend) mirrorFilter(refs []object, percent int) object {
	to := b.onCanary(refs)[0]
	delete(to, "weight")
	delete(to, "filters")
	return object{"type": filterMirror, "requestMirror": object{"backendRef": to, "percent": int64(percent)}}
}

// mirrored is the percentage of the rule's requests that the canary gets a copy of.
func (b backend) mirrored(rule object) int {
	for _, f := range list(rule, "filters") {
		if b.mirrors(f) {
			mirror, _ := f["requestMirror"].(object)
			return int(number(mirror, "percent", 100))
		}
	}
	return 0
}
