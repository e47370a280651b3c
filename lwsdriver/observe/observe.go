// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// known is what was computed of a workload: the digest of its template at a generation, and the record of an annotation's value, decoded, which
// must not be modified.
type known struct {
	uid        types.UID
	generation int64
	digest     digest

	value  string
	record *record.Record
	policy record.Policy
}

// Observe returns the current state of a workload. The error has an ErrorReason.
func (o *Observer) Observe(key types.NamespacedName) (*Snapshot, error) {
	stable := o.Workload(key)
	if stable == nil {
		// Hosts take a workload that does not exist for the end of its release.
		if err := o.Disaggregated.sets.Err(); err != nil && IsSet(key) {
			return nil, ContractError(err)
		}
		ref := RefOf(key)
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"there is no %s %s/%s: check name and namespace", ref.GetKind(), ref.GetNamespace(), ref.GetName())
	}
	s := &Snapshot{StableObject: stable, AddedObjects: map[string]*lws.LeaderWorkerSet{}}
	s.Now, s.Key = o.now(), key
	if err := o.readRecord(s); err != nil {
		if stable.DeletionTimestamp == nil {
			return nil, err
		}
		s.Record = nil // the deletion must not wait for a user
	}
	s.Identity = o.Caches.identity(stable)
	if set := o.Disaggregated.Get(key); set != nil {
		if err := o.readSet(s, set); err != nil {
			return nil, err
		}
	} else {
		o.readLeaderWorkerSet(s)
	}
	if err := o.readTraffic(s); err != nil {
		if stable.DeletionTimestamp == nil {
			return nil, err
		}
		s.Distrusted = err.Error() // as above
	}
	// Which caches count depends on what was read above: routes, a set, autoscalers.
	o.readFreshness(s)
	return s, nil
}

// readLeaderWorkerSet reads a LeaderWorkerSet, and what a release added to it.
func (o *Observer) readLeaderWorkerSet(s *Snapshot) {
	s.Stable = o.workload(s, s.StableObject)
	// The names are compared with the revisions in s.Stable.
	s.CanaryNameTaken = o.Caches.canaryNameTaken(s)
	o.readAdded(s)
	o.Caches.readSuccessor(s)
	o.readHistory(s)
	o.readUnsafeChanges(s)
	// The autoscalers of a foreign successor are not the release's.
	o.readAutoscalers(s)
}

// ObserveGone returns what the release of a deleted workload left behind.
func (o *Observer) ObserveGone(key types.NamespacedName) *Snapshot {
	s := &Snapshot{AddedObjects: map[string]*lws.LeaderWorkerSet{}}
	s.Now, s.Key, s.Gone, s.Stable.Name = o.now(), key, true, RefOf(key).GetName()
	o.readAdded(s)
	o.readAutoscalers(s)
	o.readBoundsLeft(s)
	// The added workloads and the bounds may carry the traffic policy.
	o.readTrafficLeft(s)
	return s
}

// readFreshness reads which of the caches that the decision rests on are not confirmed.
func (o *Observer) readFreshness(s *Snapshot) {
	// An autoscaler that is not in its cache yet follows the requests that a release moves, too.
	sources := slices.Concat(o.Caches.sources, o.Autoscalers.sources())
	if s.Setup != nil {
		sources = append(sources, o.Router.Sources(s.Setup.Objects()...)...)
	}
	if s.Set != nil {
		sources = append(sources, o.Disaggregated.sources()...)
	}
	// Round strips the monotonic reading, as now does: recordings have the wall clock only.
	for _, stale := range o.Freshness.Of(sources...) {
		s.Stale = append(s.Stale, plan.StaleCache{Resource: stale.Resource.GroupResource().String(), Since: stale.Since.Round(0), Why: stale.Why.Error()})
	}
}

// readAdded reads the workloads that a release added.
func (o *Observer) readAdded(s *Snapshot) {
	added := o.Caches.addedWorkloads(s.Key)
	slices.SortFunc(added, func(a, b *lws.LeaderWorkerSet) int { return strings.Compare(a.Name, b.Name) })
	for _, w := range added {
		s.Added = append(s.Added, o.addedWorkload(s, w))
		s.AddedObjects[w.Name] = w
	}
}

// identity returns what decides whether Lockstep may drive a workload.
func (c *Caches) identity(w *lws.LeaderWorkerSet) plan.Identity {
	i := plan.Identity{
		CopiedLabels: OurLabels(w), UnnumberedGroup: c.Groups.unnumbered(KeyOf(w)), Unobserved: preflight.TooOld(w),
		AppliedBy: traffic.TrackingOf(w).Key, VolumeClaims: len(w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates),
	}
	if stable, ok := AddedTo(w); ok {
		i.AddedTo = stable
	}
	if owner := metav1.GetControllerOf(w); owner != nil {
		i.ControllerKind, i.ControllerName = owner.Kind, owner.Name
	}
	return i
}

// canaryNameTaken returns the name of the canary for the template in the spec if another object has that name, else "".
func (c *Caches) canaryNameTaken(s *Snapshot) string {
	if s.Stable.Revision == "" {
		return "" // the canary has no name yet
	}
	name := types.NamespacedName{Namespace: s.Key.Namespace, Name: s.CanaryName(s.Stable.Revision)}
	if w := c.Workload(name); w == nil || StableKey(w) == s.Key {
		return ""
	}
	return name.Name
}

// readRecord reads the release record and its policy.
func (o *Observer) readRecord(s *Snapshot) error {
	value, ok := s.StableObject.Annotations[record.RecordAnnotation]
	if !ok {
		return nil
	}
	known, err := o.decode(s.Key, value)
	if err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"annotation %s of %s can't be trusted: %v. Restore it. Or remove it, and the release is dropped: what it added is deleted, "+
				"and updated groups stay; the hold then stays in the spec (partition %d) until you Adopt the workload again, and Disown it if it is to roll by itself",
			record.RecordAnnotation, Object(s.Key), err, ptr.Deref(record.Hold().Partition, 0))
	}
	// The cached record is shared. This copy gets the requested configuration, and may lose its release.
	rec := *known.record
	s.Record, s.Newer = &rec, rec.Newer
	rec.Saved, err = record.Wanted(rec.Saved, s.StableObject.Annotations)
	if err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"an annotation of %s can't be trusted: %v. Remove it, and set the field in the spec again", Object(s.Key), err)
	}
	if dropCopied(&rec, s.StableObject) {
		s.copied = &known.policy
	}
	if rec.Release != nil {
		s.Policy = known.policy
	}
	return nil
}

// dropCopied drops the release of a record that was written on another object than w: its manifest was copied, or restored from a backup. The
// copy is under hold, as in its spec, and keeps the user's own configuration. The release belongs to the original. It reports whether there was one.
func dropCopied(rec *record.Record, w *lws.LeaderWorkerSet) bool {
	if rec.UID == "" || rec.UID == w.UID {
		return false
	}
	dropped := rec.Release != nil
	rec.Release, rec.Workload, rec.Predecessor = nil, "", ""
	return dropped
}

// decode returns what a record's value says. It is decoded once, since every observation reads it.
func (o *Observer) decode(key types.NamespacedName, value string) (known, error) {
	k := o.recall(key)
	if k.record != nil && k.value == value {
		return k, nil
	}
	rec, err := record.DecodeRecord(value)
	if err != nil {
		return k, err
	}
	k.value, k.record, k.policy = value, rec, record.Policy{}
	if rec.Release != nil {
		// DecodeRecord has checked both, as far as it is known.
		message, err := rec.Release.KnownPolicy()
		if err != nil {
			return k, err
		}
		policy, _ := record.ParsePolicy(message)
		k.policy = o.config.Limits.Apply(policy)
	}
	o.remember(key, k)
	return k, nil
}

// workload describes a LeaderWorkerSet and its groups.
func (o *Observer) workload(s *Snapshot, w *lws.LeaderWorkerSet) plan.Workload {
	replicas := int(ptr.Deref(w.Spec.Replicas, 1))
	size := int(ptr.Deref(w.Spec.LeaderWorkerTemplate.Size, 1))
	manager, autoscaled := scaledBy(w)
	return plan.Workload{
		Name: w.Name, Replicas: replicas, Size: size,
		Revision: o.revision(w),
		Rolling:  rollingOf(w),
		Deleting: w.DeletionTimestamp != nil, DeletingSince: ptr.Deref(w.DeletionTimestamp, metav1.Time{}).Time,
		Observed:     w.Status.ObservedGeneration >= w.Generation,
		Groups:       o.Caches.Groups.groupsOf(KeyOf(w), replicas, size, o.Caches.sizes(w), s.Now, s.Policy.MinReady),
		HasFinalizer: hasFinalizer(w), Orphans: isOrphaning(w),
		Recorded: o.Caches.recordedRevisions(w), ChangedBy: changedBy(w),
		RolledBy: managerOf(w, rollingField).Manager, ScaledBy: manager, Autoscaled: autoscaled,
	}
}

// addedWorkload describes a workload that a release added.
func (o *Observer) addedWorkload(s *Snapshot, w *lws.LeaderWorkerSet) plan.Workload {
	view := o.workload(s, w)
	view.Carries = w.Labels[record.RevisionLabel]
	view.Lingers = Lingers(w)
	// With another UID it was added to an earlier workload of this name.
	view.Orphaned = orphaned(w) || !s.Gone && ownerUID(w) != s.StableObject.UID
	view.Target = o.target(s, w, view.Replicas)
	// Its expected template is known only while the user's workload still has the one that it was created from.
	if s.Record != nil && s.Record.Release != nil && view.Carries == s.Stable.Revision {
		want, errWant := digestOf(CanaryTemplate(s.StableObject, s.Policy), s.StableObject.Spec.NetworkConfig)
		have, errHave := o.digest(w)
		view.Drifted = errWant == nil && errHave == nil && want != have
	}
	return view
}

// target returns the requested target of an added workload. If the annotation is invalid, it is the current number of groups, so
// that the release can still be promoted or rolled back.
func (o *Observer) target(s *Snapshot, w *lws.LeaderWorkerSet, replicas int) *record.Target {
	target, err := record.DecodeTarget(w.Annotations[record.TargetAnnotation])
	// Any user of the workload may edit the annotation, and the planner looks the batch up in the policy.
	if err == nil && target != nil && target.Batch != nil && s.Record != nil && s.Record.Release != nil && *target.Batch >= len(s.Policy.Batches) {
		err = fmt.Errorf("batch %d is not one of %d", *target.Batch, len(s.Policy.Batches))
	}
	if err == nil {
		return target
	}
	s.Distrusted = fmt.Sprintf("annotation %s of LeaderWorkerSet %s can't be trusted: %v; until the next batch, its %d groups count as requested",
		record.TargetAnnotation, KeyOf(w), err, replicas)
	return &record.Target{Groups: strconv.Itoa(replicas), At: w.CreationTimestamp.Time}
}

// revision returns the hash that LWS has recorded for the template in the spec, "" while it has not.
func (o *Observer) revision(w *lws.LeaderWorkerSet) string {
	d, err := o.digest(w)
	if err != nil {
		return ""
	}
	return o.Caches.revisionOf(w, d)
}

func (o *Observer) digest(w *lws.LeaderWorkerSet) (digest, error) {
	k := o.recall(KeyOf(w))
	// The generations of a recreated workload start at 1 again, so the UID counts, too.
	if k.uid == w.UID && k.generation == w.Generation {
		return k.digest, nil
	}
	d, err := digestOf(w.Spec.LeaderWorkerTemplate, w.Spec.NetworkConfig)
	if err != nil {
		return d, err
	}
	k.uid, k.generation, k.digest = w.UID, w.Generation, d
	o.remember(KeyOf(w), k)
	return d, nil
}

func (o *Observer) recall(key types.NamespacedName) known {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[key]
}

// remember keeps what was computed of a workload until it is deleted.
func (o *Observer) remember(key types.NamespacedName, k known) {
	o.mu.Lock()
	o.known[key] = k
	o.mu.Unlock()
	if o.Workload(key) == nil {
		o.forget(key) // it was deleted meanwhile
	}
}

// forget drops what is remembered of a deleted workload, except for its traffic policy, which is needed to restore the routes.
func (o *Observer) forget(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.known, key)
	delete(o.asked, key)
	o.prober.Forget(key.String())
}
