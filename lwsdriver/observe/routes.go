// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/encoding/protojson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
	"github.com/lockstep-rollouts/lockstep/traffic/probe"
)

// readTraffic reads the objects that carry requests, if the release routes them.
func (o *Observer) readTraffic(s *Snapshot) error {
	o.keepPolicy(s)
	if s.Policy.Traffic == nil {
		// The record may have been removed while the canary still gets requests: it carries a copy of the policy.
		if err := readCanaryPolicy(s); s.Policy.Traffic == nil {
			return err
		}
	}
	setup := setupOf(s)
	setup.Shared = o.sharedRoutes(s.Key, setup.Policy.Routes)
	s.Setup, s.Traffic = &setup, o.Router.Snapshot(setup)
	if s.copied != nil && s.Policy.Traffic == s.copied.Traffic && !s.Traffic.OwnIsolation() {
		s.Setup, s.Traffic = nil, nil // the objects are those of the original
		return nil
	}
	o.readProbes(s)
	return nil
}

// readTrafficLeft reads the traffic objects of a deleted workload's release.
func (o *Observer) readTrafficLeft(s *Snapshot) {
	var setup traffic.Setup
	kept := o.policyOf(s.Key)
	// A driver that started after the deletion remembers nothing. Bounds carry the policy of a set.
	if kept == nil && s.BoundsObject != nil {
		if policy, _, _ := trafficPolicyOn(s.BoundsObject); policy != nil {
			kept = &keptPolicy{policy: policy, of: ownerUID(s.BoundsObject)}
		}
	}
	switch {
	case kept != nil && IsSet(s.Key):
		setup = traffic.NewSetupOfRole(deletedWorkload(s.Key, kept.of), "", unknownRevision, unknownRevision, *kept.policy)
	case kept != nil:
		setup = traffic.NewSetup(deletedWorkload(s.Key, kept.of), unknownRevision, *kept.policy, nil)
	default:
		for name, w := range s.AddedObjects {
			if policy, _, _ := trafficPolicyOn(w); policy != nil { // the deletion must not wait for a user to repair it
				setup = traffic.NewSetup(deletedWorkload(s.Key, ownerUID(w)), name, *policy, nil)
			}
		}
	}
	if setup.Stable != "" {
		setup.CanaryPin[record.ServingLabel] = record.Serving
		setup.Leader, setup.Worker = nil, nil // unknown
		s.Setup, s.Traffic = &setup, o.Router.Snapshot(setup)
	}
}

// deletedWorkload returns a deleted workload, of which only key and UID are known.
func deletedWorkload(key types.NamespacedName, uid types.UID) *lws.LeaderWorkerSet {
	return &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: RefOf(key).GetName(), UID: uid}}
}

// keepPolicy remembers the traffic policy of a release in place or of a DisaggregatedSet, and restores it if it is removed from the record,
// or the record is: such a release adds no object that could carry it. In memory only: a driver that starts later reads that of a
// DisaggregatedSet from its bounds, and does not know the other.
func (o *Observer) keepPolicy(s *Snapshot) {
	switch kept := o.policyOf(s.Key); {
	case s.Record != nil && s.Record.Release != nil:
		r := s.Record.Release
		keeps := plan.InPlace(s.Policy.Style) || s.Set != nil
		if keeps && s.Policy.Traffic == nil && kept != nil && kept.release == r.ID {
			s.Policy.Traffic = kept.policy // it was edited out of the record: a policy does not change during a release
		}
		if !keeps || s.Policy.Traffic == nil {
			o.ForgetPolicy(s.Key)
			return
		}
		_ = o.policies.Update(&keptPolicy{s.Key, s.Policy.Traffic, s.StableObject.UID, r.ID, r.EntryRole}) // it has a key
	case kept != nil && s.Set != nil:
		s.Policy.Traffic = kept.policy
		s.setEntryRole(kept.entry)
	case s.BoundsObject != nil:
		s.Policy.Traffic, _, _ = trafficPolicyOn(s.BoundsObject)
	case kept != nil && s.activeCanary() == "":
		// An added workload carries a policy of its own. Without one the release was in place.
		s.Policy.Traffic, s.Policy.Style = kept.policy, pb.Style_STYLE_PARTITION
	case s.copied != nil && s.activeCanary() == "":
		// The workload was recreated or restored from a backup, and so may what carries its requests.
		s.Policy.Traffic, s.Policy.Style = s.copied.Traffic, s.copied.Style
	}
}

// keptPolicy is the traffic policy of a workload's release, the UID of the workload, the release's ID, and its entry role.
type keptPolicy struct {
	workload       types.NamespacedName
	policy         *traffic.Policy
	of             types.UID
	release, entry string
}

// newPolicies returns a store of kept policies by their workload, with an index by the objects that carry its requests.
func newPolicies() cache.Indexer {
	key := func(kept any) (string, error) { return kept.(*keptPolicy).workload.String(), nil }
	carriers := func(kept *keptPolicy) []string { return carriersBy(kept.policy, kept.workload.Namespace) }
	return cache.NewIndexer(key, cache.Indexers{trafficIndex: informer.Index(carriers)})
}

// ForgetPolicy drops the traffic policy that is remembered of a release in place.
func (o *Observer) ForgetPolicy(key types.NamespacedName) {
	_ = o.policies.Delete(&keptPolicy{workload: key}) // it has a key
}

// policyOf returns the kept policy of a workload, nil if there is none.
func (o *Observer) policyOf(key types.NamespacedName) *keptPolicy {
	kept, _, _ := o.policies.GetByKey(key.String())
	policy, _ := kept.(*keptPolicy)
	return policy
}

// readCanaryPolicy reads the traffic policy from the added workloads of a release whose record was removed.
func readCanaryPolicy(s *Snapshot) error {
	if s.Record != nil && s.Record.Release != nil {
		return nil
	}
	for _, w := range s.Added {
		policy, drain, err := trafficPolicyOn(s.AddedObjects[w.Name])
		if policy != nil || err != nil {
			s.Policy.Traffic, s.Policy.Drain = policy, drain
			return err
		}
	}
	return nil
}

// trafficPolicyOn reads the traffic policy on an added workload, or on bounds, nil if there is none.
func trafficPolicyOn(w metav1.Object) (*traffic.Policy, probe.Drain, error) {
	value := w.GetAnnotations()[record.TrafficAnnotation]
	if value == "" {
		return nil, probe.Drain{}, nil
	}
	message := &pb.TrafficPolicy{}
	err := protojson.Unmarshal([]byte(value), message)
	if err == nil {
		p, bad := traffic.ParsePolicy(message)
		drain, badDrain := probe.ParseDrain(message.GetDrain())
		if bad = append(bad, badDrain...); len(bad) == 0 {
			return &p, drain, nil
		}
		err = fmt.Errorf("%s %s", bad[0].Field, bad[0].Description)
	}
	return nil, probe.Drain{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
		"annotation %s of LeaderWorkerSet %s can't be trusted: %v. Restore it, or remove it once no route leads to that workload",
		record.TrafficAnnotation, KeyOf(w), err)
}

// activeCanary returns the name of the added workload that the driver has not given up, or "" if there is none. It removes its finalizer once
// requests have left for good.
func (s *Snapshot) activeCanary() string {
	for _, w := range s.Added {
		if !w.Deleting || w.HasFinalizer {
			return w.Name
		}
	}
	return ""
}

// unknownRevision is the revision of no pod.
const unknownRevision = "none"

// setupOf describes the traffic of the release in progress. The canary is the existing one, or else the one to be created.
func setupOf(s *Snapshot) traffic.Setup {
	stable, update, canary := unknownRevision, unknownRevision, s.activeCanary()
	var updated []string
	if s.Bounds != nil { // another client may have deleted the record
		stable = cmp.Or(s.Bounds.Stable, stable)
	}
	if s.Record != nil && s.Record.Release != nil {
		r := s.Record.Release
		stable, update = cmp.Or(r.StableRevision, stable), cmp.Or(r.UpdateRevision, update)
		// In place one workload has both revisions, so the names of its leaders do not tell them apart.
		for _, g := range s.Stable.Groups {
			if g.Revision != "" && g.Revision != r.StableRevision {
				updated = append(updated, g.Leader)
			}
		}
	}
	if b := s.Bounds; b != nil && b.Update != "" {
		update = b.Update // until its units are removed, they may get requests, also if another template is released since
	}
	switch {
	case canary != "":
	case update == unknownRevision && len(s.Added) > 0: // another client removed the finalizer, and nothing else says what to restore
		canary = s.Added[0].Name
	default:
		// Before LWS has recorded a revision no pod has this name, and nothing is routed to it.
		canary = s.CanaryName(update)
	}
	return s.setup(s.Policy, canary, stable, update, updated)
}

// setup describes the traffic of a release by a policy between two revisions. updated are the leaders that are not at the stable one.
func (s *Snapshot) setup(p record.Policy, canary, stable, update string, updated []string) (setup traffic.Setup) {
	switch inPlace := plan.InPlace(p.Style); {
	case s.Set != nil:
		setup = traffic.NewSetupOfRole(s.StableObject, plan.EntryRole(s.Observation), stable, update, *p.Traffic, s.Set.Specs...)
		if inPlace {
			setup.StablePin[record.ServingLabel] = record.Serving // a group gets no requests any more before a new one takes its place
		}
	case inPlace:
		setup = traffic.NewSetupInPlace(s.StableObject, stable, update, *p.Traffic, updated)
	default:
		setup = traffic.NewSetup(s.StableObject, canary, *p.Traffic, p.LeaderLabels)
	}
	// Leaders may be ready although their groups are not complete; only the driver knows.
	setup.CanaryPin[record.ServingLabel] = record.Serving
	return setup
}

// trafficIndex finds the user's workloads by the objects that carry their requests.
const trafficIndex = "traffic"

func trafficKey(namespace, kind, name string) string { return namespace + "/" + kind + "/" + name }

// carriersOf returns the objects that carry a workload's requests: by the traffic policy in the record, which stays until the next release
// begins, and by that on added workloads, which may be the only one left.
func carriersOf(w *lws.LeaderWorkerSet) []string {
	policy := recordedTraffic(w)
	if _, added := AddedTo(w); added {
		policy, _, _ = trafficPolicyOn(w) // an observation returns the error
	}
	return carriersBy(policy, w.Namespace)
}

// carriersOfBounds is carriersOf for the bounds of a DisaggregatedSet, which outlive its record and the set.
func carriersOfBounds(b *BoundsObject) []string {
	policy, _, _ := trafficPolicyOn(b)
	return carriersBy(policy, b.Namespace)
}

func carriersBy(policy *traffic.Policy, namespace string) (keys []string) {
	if policy == nil {
		return nil
	}
	for _, o := range (traffic.Setup{Policy: *policy}).Objects() {
		keys = append(keys, trafficKey(namespace, o.Kind, o.Name))
	}
	return keys
}

// recordedTraffic returns the traffic policy in a workload's record, which may be a copy, nil if it has none that can be read.
func recordedTraffic(w *lws.LeaderWorkerSet) *traffic.Policy {
	rec, err := record.DecodeRecord(w.Annotations[record.RecordAnnotation])
	if err != nil || rec.Release == nil {
		return nil
	}
	message, err := rec.Release.KnownPolicy()
	if err != nil || message.GetTraffic() == nil {
		return nil
	}
	policy, _ := record.ParsePolicy(message)
	return policy.Traffic
}

// workloadsRoutedBy returns the user's workloads whose requests an object carries. Without a name it returns all that route requests.
func (o *Observer) workloadsRoutedBy(namespace, kind, name string) []types.NamespacedName {
	var out []types.NamespacedName
	for _, index := range []cache.Indexer{
		o.Caches.Workloads.GetIndexer(), o.Disaggregated.sets.GetIndexer(), o.Disaggregated.bounds.GetIndexer(), o.policies,
	} {
		keys := []string{trafficKey(namespace, kind, name)}
		if name == "" {
			keys = index.ListIndexFuncValues(trafficIndex)
		}
		for _, key := range keys {
			routed, _ := index.ByIndex(trafficIndex, key)
			for _, of := range routed {
				switch of := of.(type) {
				case *lws.LeaderWorkerSet:
					out = append(out, StableKey(of))
				case *Set:
					out = append(out, of.Key())
				case *BoundsObject:
					out = append(out, of.key())
				case *keptPolicy:
					out = append(out, of.workload)
				}
			}
		}
	}
	return out
}

// sharedRoutes returns the routes that a running release of another workload writes, too.
func (o *Observer) sharedRoutes(key types.NamespacedName, routes []traffic.Key) []traffic.Key {
	return slices.DeleteFunc(slices.Clone(routes), func(route traffic.Key) bool {
		return !slices.ContainsFunc(o.workloadsRoutedBy(key.Namespace, route.Kind, route.Name), func(other types.NamespacedName) bool {
			return other != key && o.isReleasing(other)
		})
	})
}

// isReleasing reports whether a release of the workload is running, by its record.
func (o *Observer) isReleasing(key types.NamespacedName) bool {
	w := o.Workload(key)
	if w == nil {
		return false
	}
	rec := recordOf(w)
	if rec == nil || rec.Release == nil {
		return false
	}
	// A finished release writes its routes until what it added is gone.
	return rec.Release.Phase.Unfinished() || len(o.Caches.addedWorkloads(key)) > 0
}
