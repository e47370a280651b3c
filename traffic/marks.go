// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// A policy is read from an annotation of a workload, so any editor of the workload may have written it. Each object that it
// names is therefore verified before the release's first write to it, by the same rules as in [Check]. The evidence of an
// earlier write is on the objects themselves, which an editor of the workload can't change: the fence, the labels of generated
// objects, and the entry in managedFields. With it an object is restored whatever has become of it.

// distrusted returns the error for an object that the policy names and that is neither marked by a release of the workload nor
// fit to be used by one.
func distrusted(s Setup, k Key, why string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
		"the release of %s %s/%s names %s, which no release of it has changed, and which none may change: %s. "+
			"It is left as it is. If the policy is not yours, remove annotation lockstep.dev/release of %[3]s; otherwise repair the object",
		s.Owner.Kind, s.Namespace, s.Stable, k, why)
}

// nameLabels are the labels of pods with the name of their workload.
var nameLabels = []string{lws.SetNameLabelKey, disaggregated.SetNameLabelKey}

// fencedFor returns the label and name of the workload that the selector is pinned to, by the fence's annotation or else by its user. Both
// are empty if neither names one. An annotation that can't be read names none.
func (s selector) fencedFor() (label, name string) {
	added, err := s.added()
	if err != nil {
		added = nil
	}
	for _, labels := range []map[string]string{added, s.labels} {
		for _, label := range nameLabels {
			if labels[label] != "" {
				return label, labels[label]
			}
		}
	}
	return "", ""
}

// ownFence reports whether a release of this workload has fenced the selector, or its user has pinned it to the workload.
func (s selector) ownFence(setup Setup) bool {
	return setup.namesWorkload(s.fencedFor())
}

// foreignFence reports whether the fence is that of a release of another workload.
func (s selector) foreignFence(setup Setup) bool {
	label, _ := s.fencedFor()
	return label != "" && !s.ownFence(setup)
}

// verify returns why the selector must not be fenced for the first time, or nil if a release of the workload has fenced it, or may.
func (w World) verify(sel selector, s Setup) error {
	if sel.ownFence(s) {
		return nil
	}
	why := "the workload is deleted, so it is unknown whether the selector matches its leaders"
	if s.Leader != nil {
		check := sel.check
		if sel.of.Kind == KindService {
			check = func(s Setup) error { return checkStable(s, w) }
		}
		err := check(s)
		if err == nil {
			return nil
		}
		why = drivererr.ProblemOf(err).Message
	}
	return distrusted(s, sel.of, why)
}

// canaryBackend returns the canary's Service or pool, which the routes lead to, or nil if it does not exist.
func (w World) canaryBackend(s Setup) metav1.Object {
	switch {
	case s.Policy.Pool != nil && w.CanaryPool != nil:
		return w.CanaryPool
	case s.Policy.Pool == nil && w.Canary != nil:
		return w.Canary
	}
	return nil
}

// stableBackend returns the selector of the stable Service or pool, to which the routes lead, or false if it does not exist.
func (w World) stableBackend(s Setup) (selector, bool) {
	for _, sel := range w.selectors() {
		if sel.of.Kind == s.backend().kind {
			return sel, true
		}
	}
	return selector{}, false
}

// stableVerified reports whether the stable backend is fenced by a release of this workload, or may be.
func (w World) stableVerified(s Setup) bool {
	sel, exists := w.stableBackend(s)
	return exists && w.verify(sel, s) == nil
}

// verifyRoute returns why backendRefs to the canary in a route are not those of a release of this workload: they would be
// replaced with others. Nil means that the route has none, or they are.
func (w World) verifyRoute(s Setup, r Route) error {
	b := s.backend()
	if !RouteUses(r, s) && !slices.ContainsFunc(r.rules(), b.added) {
		return nil
	}
	canary := w.canaryBackend(s)
	written := slices.ContainsFunc(r.Object.GetManagedFields(), IsLockstepEntry)
	leads, verified := r.leadsTo(b.isStable), w.stableVerified(s)
	switch {
	case canary != nil && madeFor(canary, s):
		return nil
	case canary == nil && written && (leads || verified):
		return nil // the canary's backend was deleted
	case canary != nil && written && leads && verified:
		return nil // another object has taken its name
	}
	return distrusted(s, r.Key, "its backendRefs to "+b.kind+" "+b.canary+" are not those of a canary")
}

// verifyNew returns why the canary's Service or pool must not be created: the stable one is not the workload's, or a route
// leads to its name already.
func (w World) verifyNew(s Setup, backend string) error {
	for _, sel := range w.selectors() {
		if err := w.verify(sel, s); err != nil {
			return err
		}
	}
	if backend != s.backend().canary {
		return nil // no route leads to it
	}
	for _, r := range w.routes(s) {
		if err := w.verifyRoute(s, r); err != nil {
			return err
		}
	}
	return nil
}
