// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Check returns why a release can't begin: an object that is missing or can't be used. It is not for a release in progress,
// which would find the objects that it created itself.
func Check(s Setup, w World) error {
	if err := checkStable(s, w); err != nil {
		return err
	}
	if w.Canary != nil && !madeFor(w.Canary, s) {
		return nameTaken(s, Key{KindService, s.Policy.CanaryService}, nameAnotherService)
	}
	if err := checkPool(s, w); err != nil {
		return err
	}
	for _, key := range s.Policy.Routes {
		object := w.Routes[key]
		if object == nil {
			return missingError(s, key)
		}
		if err := checkRoute(s, Route{key, object}, w.Canary != nil); err != nil {
			return err
		}
	}
	for _, name := range s.Policy.Ingresses {
		if err := checkIngress(s, name, w); err != nil {
			return err
		}
	}
	return nil
}

// checkStable requires that the Service selects all stable leaders, no workers, and no pods of others: the isolation would exclude
// them. It may select the canary's leaders too.
func checkStable(s Setup, w World) error {
	svc := w.Stable
	switch {
	case svc == nil:
		return missingError(s, Key{KindService, s.Policy.StableService})
	case svc.Spec.Type == corev1.ServiceTypeExternalName:
		return unusableError("Service %s has type ExternalName, which selects no pods: use one of type ClusterIP that selects the leaders of %s", svc.Name, s.Stable)
	}
	if err := serviceSelector(svc).check(s); err != nil {
		return err
	}
	if pod := w.foreignPod(s); pod != "" {
		return unusableError("Service %s also leads to pod %s, which is not a leader of %s, and which would receive no requests during a release: give each workload a Service of its own",
			svc.Name, pod, s.Stable)
	}
	return nil
}

// CheckTemplate returns why a template that was edited since the release began can't be released: the stable Service or pool does not select
// its leaders, or selects others, too. What is unknown is no reason.
func (o *Observed) CheckTemplate() error {
	if o.Unread != nil || o.Setup.Leader == nil {
		return nil //nolint:nilerr // see above
	}
	for _, sel := range o.World.selectors() {
		var err error
		if sel.labels, _, err = sel.withoutIsolation(); err != nil {
			return nil //nolint:nilerr // its next write reports it
		}
		if err := sel.check(o.Setup); err != nil {
			return err
		}
	}
	return nil
}

// check requires that the selector matches all stable leaders and no workers, and that of a Service no leaders of other roles.
func (sel selector) check(s Setup) error {
	field := strings.Join(sel.path, ".")
	if len(sel.labels) == 0 {
		return unusableError("%s has no %s, so it does not select the leaders of %s: add %s",
			sel.of, field, s.Stable, formatLabels(s.StablePin, leaders))
	}
	if wrong := missingLabels(sel.labels, s.Leader); len(wrong) > 0 {
		return unusableError("%s selects no leader of %s: its %s requires %s; the leaders have %s. Correct the selector, or label the leader template",
			sel.of, s.Stable, field, formatLabels(wrong), formatFound(wrong, s.Leader))
	}
	for _, role := range append([]Role{{Worker: s.Worker}}, s.Others...) {
		if role.Worker != nil && len(missingLabels(sel.labels, role.Worker)) == 0 {
			return unusableError("%s selects the workers of %s too, which don't serve requests: add %s to its %s", sel.of, s.Stable, formatLabels(leaders), field)
		}
		if sel.of.Kind == KindService && role.Leader != nil && len(missingLabels(sel.labels, role.Leader)) == 0 {
			return unusableError("%s selects the leaders of several roles of %s, and can't choose among them: add %s to its %s, with the role that "+
				"receives the requests (%s or %s). An InferencePool may select several",
				sel.of, s.Stable, disaggregated.RoleLabelKey, field, s.StablePin[disaggregated.RoleLabelKey], role.Name)
		}
	}
	if wrong := missingLabels(sel.labels, labels.Merge(s.Leader, s.CanaryLeader)); len(wrong) > 0 {
		return unusableError("%s requires %s in its %s, but policy.canary_leader_metadata gives canary leaders %s: leave these labels out of the policy",
			sel.of, formatLabels(wrong), field, formatFound(wrong, s.CanaryLeader))
	}
	if by := TrackingOf(sel.object).Key; s.Adopts && by != "" && sel.labels[lws.SetNameLabelKey] == s.Stable {
		return unusableError("%s selects %s=%q and is applied by a tool (it has %s), which would restore the old name once %s is adopted: "+
			"select by a label of your own instead, or promote in place", sel.of, lws.SetNameLabelKey, s.Stable, by, s.Canary)
	}
	_, _, _, err := sel.isolatedLabels(s, Desired{})
	return err
}

func checkRoute(s Setup, r Route, begun bool) error {
	b := s.backend()
	if !begun && RouteUses(r, s) {
		otherwise := "name another Service in " + policyField + ".canary_service"
		if s.Policy.Pool != nil {
			otherwise = "rename the pool"
		}
		return unusableError("%s already has a backendRef to %s %s, the name of the canary's generated %s: remove the backendRef, or %s",
			r.Key, b.kind, b.canary, b.kind, otherwise)
	}
	if !RouteServes(r, s) {
		return unusableError("%s has no rule with a backendRef to %s %s in namespace %s and a weight above 0, so there is nothing to split: add one, or take the route out of the policy",
			r.Key, b.kind, b.stable, s.Namespace)
	}
	// Any percentage reports the weights that can't be split.
	_, err := RoutePatch(r, s, Desired{Weight: 1}, false)
	return err
}

// missingLabels returns the labels that a selector requires and pods do not have.
func missingLabels(selector, pods map[string]string) map[string]string {
	missing := maps.Clone(selector)
	maps.DeleteFunc(missing, func(k, v string) bool { have, ok := pods[k]; return ok && have == v })
	return missing
}

// formatLabels formats labels as in a manifest.
func formatLabels(sets ...map[string]string) string {
	var out []string
	for _, set := range sets {
		for _, k := range slices.Sorted(maps.Keys(set)) {
			out = append(out, fmt.Sprintf("%s: %q", k, set[k]))
		}
	}
	return strings.Join(out, ", ")
}

// formatFound formats what pods have in place of the labels that a selector requires.
func formatFound(wrong, pods map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(wrong)) {
		if have, ok := pods[k]; ok {
			out = append(out, fmt.Sprintf("%s: %q", k, have))
		} else {
			out = append(out, "no label "+k)
		}
	}
	return strings.Join(out, ", ")
}

// unusableError returns the error for an object of the policy that can't be used as it is: a FAILED_PRECONDITION, since a user
// must change the object or the policy.
func unusableError(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, format, args...)
}

// missingError returns the error for an object of the policy that does not exist.
func missingError(s Setup, k Key) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
		"%s names %s, which does not exist in namespace %s: create it, or correct the policy", policyField, k, s.Namespace)
}

// unsupportedError returns the error for a request that the objects of the policy can't express: the caller must change the
// request or the policy.
func unsupportedError(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, format, args...)
}

// nameTaken returns the error for a foreign object with the name of a generated one. otherwise is the remedy if it can't be
// deleted.
func nameTaken(s Setup, k Key, otherwise string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
		"%s %s/%s has the name of the canary's generated %s, but was not created for %s: delete it, or %s",
		k.Kind, s.Namespace, k.Name, k.Kind, s.Stable, otherwise)
}

// nameAnotherService is the remedy for a Service name that is taken.
const nameAnotherService = "name another in " + policyField + ".canary_service"

// A policy is read from an annotation of a workload, so any editor of the workload may have written it. Each object that it
// names is therefore verified before the release's first write to it, by the same rules as in [Check]. The evidence of an
// earlier write is on the objects themselves, which an editor of the workload can't change: the isolation, the labels of generated
// objects, and what names the canary in a route: the annotation, and added rules. With it an object is restored whatever has become of it.

// distrustedError returns the error for an object that the policy names and that is neither marked by a release of the workload nor
// fit to be used by one.
func distrustedError(s Setup, k Key, why string) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
		"the release of %s %s/%s names %s, which no release of it has changed, and which none may change: %s. "+
			"It is left as it is. If the policy is not yours, remove annotation lockstep.dev/release of %[3]s; otherwise repair the object",
		s.Owner.Kind, s.Namespace, s.Stable, k, why)
}

// nameLabels are the labels of pods with the name of their workload.
var nameLabels = []string{lws.SetNameLabelKey, disaggregated.SetNameLabelKey}

// isolatedFor returns the label and name of the workload that the selector is pinned to, by the isolation's annotation or else by its user. Both
// are empty if neither names one. An annotation that can't be read names none.
func (s selector) isolatedFor() (label, name string) {
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

// ownIsolation reports whether a release of this workload has isolated the selector, or its user has pinned it to the workload.
func (s selector) ownIsolation(setup Setup) bool {
	return setup.namesWorkload(s.isolatedFor())
}

// OwnIsolation reports whether the stable Service or pool is isolated for this workload, or its user has pinned it to the workload.
func (o *Observed) OwnIsolation() bool {
	return slices.ContainsFunc(o.World.selectors(), func(sel selector) bool { return sel.ownIsolation(o.Setup) })
}

// foreignIsolation reports whether the isolation is that of a release of another workload.
func (s selector) foreignIsolation(setup Setup) bool {
	label, _ := s.isolatedFor()
	return label != "" && !s.ownIsolation(setup)
}

// verify returns why the selector must not be isolated for the first time, or nil if a release of the workload has isolated it, or may.
func (w World) verify(sel selector, s Setup) error {
	if sel.ownIsolation(s) {
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
	return distrustedError(s, sel.of, why)
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

// stableVerified reports whether the stable backend is isolated by a release of this workload, or may be.
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
	listed := slices.Contains(r.canaries(), b.key()) || slices.ContainsFunc(r.rules(), b.added)
	serves, verified := r.leadsTo(b.isStable), w.stableVerified(s)
	switch {
	case canary != nil && madeFor(canary, s):
		return nil
	case canary == nil && listed && (serves || verified):
		return nil // the canary's backend was deleted
	case canary != nil && canary.GetLabels()[RoleLabel] != RoleCanary && listed && serves && verified:
		return nil // another object has taken its name, and none that another release generated
	}
	return distrustedError(s, r.Key, "its backendRefs to "+b.kind+" "+b.canary+" are not those of a canary")
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
