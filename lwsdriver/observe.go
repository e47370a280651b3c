// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	"github.com/lockstep-rollouts/lockstep/traffic/router"
)

// seen is one look at a workload: what plan needs, and the cached objects that a write is based on.
type seen struct {
	plan.Observation

	key    types.NamespacedName
	stable *lws.LeaderWorkerSet
	// setup is what the release's traffic consists of. Nil: it routes none.
	setup *traffic.Setup
	// recheck is when a request to a leader may have changed something. Zero: never.
	recheck time.Duration
	added   map[string]*lws.LeaderWorkerSet // by name

	// distrusted says what was edited by hand and is not believed. Empty: nothing.
	distrusted string
}

// without says whether an added workload is known to have no pod.
func (s *seen) without(name string) bool {
	for _, w := range s.Added {
		if w.Name == name {
			return !slices.ContainsFunc(w.Groups, func(g plan.Group) bool { return g.Revision != "" || g.ReadyPods > 0 })
		}
	}
	return false
}

// observer reads the caches, and what leaders have told. It never writes.
type observer struct {
	caches *caches
	router *router.Router
	// scalers are nil in tests that have none.
	scalers *autoscalers
	prober  prober
	now     func() time.Time
	// asksNobody: no leader is to be warmed up by this driver.
	asksNobody bool
	budgets    *budgets
	snapshots  *snapshots

	mu      sync.Mutex
	digests map[types.NamespacedName]knownDigest
	drains  map[types.NamespacedName]drainBegun
	// policies are those of releases that route requests in place.
	policies map[types.NamespacedName]keptPolicy
}

// knownDigest spares encoding a template that has not changed since.
type knownDigest struct {
	uid        types.UID
	generation int64
	digest     digest
}

// observe returns the workload as it stands. The error has an ErrorReason.
func (o *observer) observe(key types.NamespacedName) (*seen, error) {
	stable := o.caches.workload(key)
	if stable == nil {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND,
			"there is no LeaderWorkerSet %s: check name and namespace", key)
	}
	s := &seen{key: key, stable: stable, added: map[string]*lws.LeaderWorkerSet{}}
	s.Now, s.Key = o.now(), key
	if err := o.readRecord(s); err != nil {
		if stable.DeletionTimestamp == nil {
			return nil, err
		}
		s.Record = nil // the deletion must not wait for a person
	}
	o.readBudgets(s)
	s.Stable = o.workload(s, stable)
	s.Identity = o.caches.identity(stable)
	s.CanaryNameTaken = o.caches.canaryNameTaken(s)
	o.readAdded(s)
	s.Succeeded = o.caches.succeeded(s)
	o.readHistory(s)
	o.readAutoscalers(s)
	return s, o.readTraffic(s)
}

// observeGone is observe for a workload that no longer exists: what its release left.
func (o *observer) observeGone(key types.NamespacedName) (*seen, error) {
	s := &seen{key: key, added: map[string]*lws.LeaderWorkerSet{}}
	s.Now, s.Key, s.Gone, s.Stable.Name = o.now(), key, true, key.Name
	o.readAdded(s)
	o.readAutoscalers(s)
	return s, o.readTrafficLeft(s)
}

// readAdded reads the workloads that a release added.
func (o *observer) readAdded(s *seen) {
	added := o.caches.added(s.key)
	slices.SortFunc(added, func(a, b *lws.LeaderWorkerSet) int { return strings.Compare(a.Name, b.Name) })
	for _, w := range added {
		s.Added = append(s.Added, o.addedWorkload(s, w))
		s.added[w.Name] = w
	}
}

// identity tells whether Lockstep may drive a workload.
func (c *caches) identity(w *lws.LeaderWorkerSet) plan.Identity {
	i := plan.Identity{
		CopiedLabels: ourLabels(w), UnnumberedGroup: c.groups.unnumbered(keyOf(w)), Unobserved: preflight.TooOld(w),
		AppliedBy: traffic.SyncedBy(w), VolumeClaims: len(w.Spec.LeaderWorkerTemplate.VolumeClaimTemplates),
	}
	if stable, ok := addedTo(w); ok {
		i.AddedTo = stable
	}
	if owner := metav1.GetControllerOf(w); owner != nil {
		i.ControllerKind, i.ControllerName = owner.Kind, owner.Name
	}
	return i
}

// canaryNameTaken is the name of the canary that the template in the spec would get, if an object that no release of the
// workload added has it.
func (c *caches) canaryNameTaken(s *seen) string {
	if s.Stable.Revision == "" {
		return "" // the canary has no name yet
	}
	name := types.NamespacedName{Namespace: s.key.Namespace, Name: s.canaryName(s.Stable.Revision)}
	if w := c.workload(name); w == nil || stableKey(w) == s.key {
		return ""
	}
	return name.Name
}

// readRecord reads the release record and its policy.
func (o *observer) readRecord(s *seen) error {
	value, ok := s.stable.Annotations[record.RecordAnnotation]
	if !ok {
		return nil
	}
	rec, err := record.DecodeRecord(value)
	if err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"annotation %s of LeaderWorkerSet %s can't be trusted: %v. Restore it. Or remove it, and the release is dropped; the "+
				"hold then stays in the spec (partition %d) until you Adopt the workload again, and Disown it if it is to roll by itself",
			record.RecordAnnotation, s.key, err, ptr.Deref(record.Hold().Partition, 0))
	}
	s.Record = rec
	rec.Saved, err = record.Wanted(rec.Saved, s.stable.Annotations)
	if err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"an annotation of LeaderWorkerSet %s can't be trusted: %v. Remove it, and set what you want in the spec again", s.key, err)
	}
	if rec.UID != "" && rec.UID != s.stable.UID {
		// The manifest was copied, or restored from a backup. The copy is held, as its spec says, and gives back what the
		// user had; the release is the other workload's.
		rec.Release, rec.Workload, rec.Succeeds = nil, "", ""
	}
	if rec.Release == nil {
		return nil
	}
	// DecodeRecord has checked both.
	message, err := rec.Release.PolicyMessage()
	if err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "LeaderWorkerSet %s: %v", s.key, err)
	}
	s.Policy, _ = record.ParsePolicy(message)
	return nil
}

// workload describes a LeaderWorkerSet and its groups.
func (o *observer) workload(s *seen, w *lws.LeaderWorkerSet) plan.Workload {
	replicas := int(ptr.Deref(w.Spec.Replicas, 1))
	size := int(ptr.Deref(w.Spec.LeaderWorkerTemplate.Size, 1))
	return plan.Workload{
		Name: w.Name, Replicas: replicas, Size: size,
		Revision: o.revision(w),
		Rolling:  rollingOf(w),
		Deleting: w.DeletionTimestamp != nil,
		Observed: w.Status.ObservedGeneration >= w.Generation,
		Groups:   o.caches.groups.of(keyOf(w), replicas, size, s.Now, s.Policy.MinReady),
		Held:     holds(w),
		Recorded: o.caches.recorded(w), ChangedBy: changedBy(w),
	}
}

// addedWorkload describes one that a release added.
func (o *observer) addedWorkload(s *seen, w *lws.LeaderWorkerSet) plan.Workload {
	view := o.workload(s, w)
	view.Carries = w.Labels[record.RevisionLabel]
	view.Lingers = lingers(w)
	view.Target = o.target(s, w, view.Replicas)
	// The template it should have can be told only while the user's workload still has the one it was made from.
	if s.Record != nil && s.Record.Release != nil && view.Carries == s.Stable.Revision {
		want, errWant := digestOf(canaryTemplate(s.stable, s.Policy), s.stable.Spec.NetworkConfig)
		have, errHave := o.digest(w)
		view.Drifted = errWant == nil && errHave == nil && want != have
	}
	return view
}

// target is what was asked for of what a release added. Where the annotation was edited by hand, it is what that has been
// scaled to, so that the release can still be ended either way.
func (o *observer) target(s *seen, w *lws.LeaderWorkerSet, replicas int) *record.Target {
	target, err := record.DecodeTarget(w.Annotations[record.TargetAnnotation])
	if err == nil && target != nil && target.Batch != nil && s.Record != nil && s.Record.Release != nil && *target.Batch >= len(s.Policy.Batches) {
		err = fmt.Errorf("batch %d is not one of %d", *target.Batch, len(s.Policy.Batches))
	}
	if err == nil {
		return target
	}
	s.distrusted = fmt.Sprintf("annotation %s of LeaderWorkerSet %s can't be trusted: %v; until the next batch, its %d groups count as asked for",
		record.TargetAnnotation, keyOf(w), err, replicas)
	return &record.Target{Groups: strconv.Itoa(replicas), At: w.CreationTimestamp.Time}
}

// rollingOf is the rolling update configuration in the spec; LWS's webhook always sets one.
func rollingOf(w *lws.LeaderWorkerSet) lws.RollingUpdateConfiguration {
	return ptr.Deref(w.Spec.RolloutStrategy.RollingUpdateConfiguration, lws.RollingUpdateConfiguration{})
}

// revision is the hash that LWS has recorded for the template in the spec, "" while it has not.
func (o *observer) revision(w *lws.LeaderWorkerSet) string {
	d, err := o.digest(w)
	if err != nil {
		return ""
	}
	return o.caches.revisionOf(w, d)
}

func (o *observer) digest(w *lws.LeaderWorkerSet) (digest, error) {
	key := keyOf(w)
	o.mu.Lock()
	known := o.digests[key]
	o.mu.Unlock()
	if known.uid == w.UID && known.generation == w.Generation {
		return known.digest, nil
	}
	d, err := digestOf(w.Spec.LeaderWorkerTemplate, w.Spec.NetworkConfig)
	if err != nil {
		return d, err
	}
	o.remember(key, knownDigest{w.UID, w.Generation, d})
	if o.caches.workload(key) == nil {
		o.forget(key) // it went while we looked
	}
	return d, nil
}

func (o *observer) remember(key types.NamespacedName, d knownDigest) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.digests == nil {
		o.digests = map[types.NamespacedName]knownDigest{}
	}
	o.digests[key] = d
}

// forget drops what is remembered of a workload that is gone, but for its policy, which is needed to give back what the
// workload had borrowed.
func (o *observer) forget(key types.NamespacedName) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.digests, key)
	delete(o.drains, key)
	o.prober.Forget(key.String())
}
