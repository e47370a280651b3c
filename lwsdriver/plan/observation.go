// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Observation is the state of a workload at one time: everything that a decision depends on.
type Observation struct {
	// Now is the time of the observation.
	Now time.Time `json:"now,omitzero"`
	// Key names the user's workload.
	Key types.NamespacedName `json:"key,omitzero"`
	// Identity is what decides whether Lockstep may manage the user's workload.
	Identity Identity `json:"identity,omitzero"`
	// CanaryNameTaken is the name of the canary for the template in the spec, if another object has it.
	CanaryNameTaken string `json:"canaryNameTaken,omitzero"`
	// Gone: the user's workload no longer exists. Only its name, and what its release left behind, are known.
	Gone bool `json:"gone,omitzero"`
	// Refused is why the API server refused the last write for good. Nil means that it did not.
	Refused *drivererr.Problem `json:"refused,omitzero"`
	// Stable is the user's workload.
	Stable Workload `json:"stable,omitzero"`
	// Added are the workloads that a release added to it, by name. Normally none or one.
	Added []Workload `json:"added,omitzero"`
	// Leftovers are added workloads of which only pods that can't be deleted are left; see [Judge].
	Leftovers []Workload `json:"leftovers,omitzero"`
	// MaxInFlight is how many groups the release may have in flight: what others leave of the server's limit. Nil means that there is none.
	MaxInFlight *int `json:"maxInFlight,omitzero"`
	// Waiting is what the last decision waited for. Zero means nothing, or the driver has just started.
	Waiting Waiting `json:"waiting,omitzero"`
	// Record is the release record. Nil means that the workload is not adopted.
	Record *record.Record `json:"record,omitzero"`
	// Newer is what this driver does not know of the record, empty if it knows all.
	Newer string `json:"newer,omitzero"`
	// Policy is the policy of the recorded release. Zero without a release.
	Policy record.Policy `json:"policy,omitzero"`
	// Succeeded is true once the second set that the record names as successor has become the workload.
	Succeeded bool `json:"succeeded,omitzero"`
	// SuccessorForeign is true if the successor that the record names is not one that a release of the workload added.
	SuccessorForeign bool `json:"successorForeign,omitzero"`
	// Traffic is how the release's requests are routed. Nil means it routes none.
	Traffic *traffic.Observed `json:"traffic,omitzero"`
	// Drain is how far the leaders that the last decision drains have finished their requests, nil if it drains
	// none.
	Drain *Drain `json:"drain,omitzero"`
	// Autoscalers are those that scale the workload or its successor, or are held for it, by kind and name.
	Autoscalers []Autoscaler `json:"autoscalers,omitzero"`
	// Unscanned is why the autoscalers are unknown. Nil means that they are known.
	Unscanned *drivererr.Problem `json:"unscanned,omitzero"`
	// History are the templates that the driver keeps, at most HistoryLimit. HistoryUnread: the cache is not synced yet,
	// or they can't be written.
	History       []Entry `json:"history,omitzero"`
	HistoryLimit  int     `json:"historyLimit,omitzero"`
	HistoryUnread bool    `json:"historyUnread,omitzero"`
	// Stale are those of the caches of the observation that the API server does not confirm.
	Stale []StaleCache `json:"stale,omitzero"`
	// Roles are those of a DisaggregatedSet, in the order of its spec, Slices is how often it has them all, and Children are the
	// LeaderWorkerSets that LWS created for them. A LeaderWorkerSet has none of them.
	Roles    []Role  `json:"roles,omitzero"`
	Slices   int     `json:"slices,omitzero"`
	Children []Child `json:"children,omitzero"`
	// DeletedChildren are children that LeaderWorkerSet has deleted, with the groups of which pods are left.
	DeletedChildren []Child `json:"deletedChildren,omitzero"`
	// EntryRole is the role whose leaders get the requests. Empty, or a role that the groups do not have, means the first one.
	EntryRole string `json:"entryRole,omitzero"`
	// Namesakes are other LeaderWorkerSets with names like children.
	Namesakes []string `json:"namesakes,omitzero"`
	// SlicesWaiting is how many slices of the spec LWS creates only once the template in the spec is released or restored; see [Judge].
	SlicesWaiting int `json:"slicesWaiting,omitzero"`
	// RolesWaiting are the names of the roles in the spec, if they are others than those of the groups; see [Judge].
	RolesWaiting string `json:"rolesWaiting,omitzero"`
	// Bounds are those of the children, nil if there are none. BoundsEnforced is true if an admission policy enforces them.
	// BoundsUnread is why that is unknown, nil if it is known. BoundsBy is the field manager that wrote them after Lockstep, empty if none is known.
	Bounds         *Bounds            `json:"bounds,omitzero"`
	BoundsBy       string             `json:"boundsBy,omitzero"`
	BoundsEnforced bool               `json:"boundsEnforced,omitzero"`
	BoundsUnread   *drivererr.Problem `json:"boundsUnread,omitzero"`
	// BoundsLeft is true if the workload is gone or not adopted, and there are bounds of an earlier one with its name.
	BoundsLeft bool `json:"boundsLeft,omitzero"`
	// UnsafeChanges are those from the template of groups to the one in the spec that affect these groups under hold.
	UnsafeChanges []TemplateChange `json:"unsafeChanges,omitzero"`
}

// StaleCache is a cache that may no longer hold what the cluster has.
type StaleCache struct {
	// Resource is what it holds, such as "pods" or "leaderworkersets.leaderworkerset.x-k8s.io".
	Resource string `json:"resource,omitzero"`
	// Since is when it was confirmed last, Why says why it is not any more.
	Since time.Time `json:"since,omitzero"`
	Why   string    `json:"why,omitzero"`
}

// Workload is one LeaderWorkerSet.
type Workload struct {
	Name string `json:"name,omitzero"`
	// Replicas is the number of groups in the spec.
	Replicas int `json:"replicas,omitzero"`
	// Size is the number of pods of a group in the spec, including the leader.
	Size int `json:"size,omitzero"`
	// Revision is the hash that LWS has recorded for the template in the spec. Empty means that LWS has not recorded it yet.
	Revision string `json:"revision,omitzero"`
	// Rolling is the rolling update configuration in the spec.
	Rolling lws.RollingUpdateConfiguration `json:"rolling,omitzero"`
	// Deleting is true once the workload has a deletion timestamp.
	Deleting bool `json:"deleting,omitzero"`
	// DeletingSince is when the deletion was requested. Zero means that it was not.
	DeletingSince time.Time `json:"deletingSince,omitzero"`
	// Observed is true once LWS has observed the present spec.
	Observed bool `json:"observed,omitzero"`
	// Groups are those that exist or that the driver has observed before, by index; those above replicas are included. Groups that were
	// never created are left out: see [Workload.Wanted].
	Groups []Group `json:"groups,omitzero"`
	// Parts are the children of a DisaggregatedSet that have its groups, one after another.
	Parts []Part `json:"parts,omitzero"`
	// Recorded are the revisions whose template LWS has.
	Recorded []string `json:"recorded,omitzero"`
	// ChangedBy is the field manager that last wrote the template in the spec. Empty means unknown.
	ChangedBy string `json:"changedBy,omitzero"`
	// RolledBy is the field manager that wrote the rolling update configuration after Lockstep. Empty means none that is known.
	RolledBy string `json:"rolledBy,omitzero"`
	// ScaledBy is the field manager that last wrote replicas. Empty means unknown. Autoscaled is true if it wrote the scale
	// subresource and is not kubectl, as autoscalers do.
	ScaledBy   string `json:"scaledBy,omitzero"`
	Autoscaled bool   `json:"autoscaled,omitzero"`

	// HasFinalizer is true if it has the driver's finalizer: an added workload, or a copy of its manifest.
	HasFinalizer bool `json:"hasFinalizer,omitzero"`
	// Orphans is true while the user's workload is being deleted without its pods.
	Orphans bool `json:"orphans,omitzero"`

	// The remaining fields are of added workloads only.

	// Carries is the update revision of the user's workload that this one was created for.
	Carries string `json:"carries,omitzero"`
	// Drifted is true if its template was changed since its creation.
	Drifted bool `json:"drifted,omitzero"`
	// Lingers is true while it is being deleted in the background, so that its groups would outlive it.
	Lingers bool `json:"lingers,omitzero"`
	// Orphaned is true if its owner reference was removed, as by the deletion of the user's workload with --cascade=orphan, or
	// if it names an earlier workload of the same name. It is deleted, and never counts as the canary.
	Orphaned bool `json:"orphaned,omitzero"`
	// Target is the batch that it was last scaled for. Nil means none yet.
	Target *record.Target `json:"target,omitzero"`
}

// Group is one leader pod and its workers.
type Group struct {
	Index int `json:"index,omitzero"`
	// Leader is the leader pod's name, also while the pod is missing.
	Leader string `json:"leader,omitzero"`
	// Revision is the leader's. Empty means that the leader is missing.
	Revision string `json:"revision,omitzero"`
	// Ready is true when the leader and every worker are ready at one revision.
	Ready bool `json:"ready,omitzero"`
	// ReadySince is when the last of its pods became ready. Zero unless Ready.
	ReadySince time.Time `json:"readySince,omitzero"`
	// FirstReady is when the group was first ready for the policy's minReady at this revision; flapping does not move it.
	// Zero means never.
	FirstReady time.Time `json:"firstReady,omitzero"`
	// LostAt is when the group stopped being ready, or when its pods were created if it never was. It is kept while the
	// group is recreated or flaps, until it is ready for minReady or 10 seconds again. Zero means that the group is ready, or the
	// driver never saw a pod of it.
	LostAt time.Time `json:"lostAt,omitzero"`
	// Serving is true if the leader has the label that lets it receive requests.
	Serving bool `json:"serving,omitzero"`
	// WarmUp is the answer to the leader's warm-up request, nil without one.
	WarmUp *Answer `json:"warmUp,omitzero"`
	// Terminating is true while the leader is being deleted.
	Terminating bool `json:"terminating,omitzero"`
	// TerminatingReady is true while a pod that is being deleted still has the condition Ready, by which LWS takes the group for available.
	TerminatingReady bool `json:"terminatingReady,omitzero"`
	// Restarts is how often the driver has restarted the group without changing its revision.
	Restarts int `json:"restarts,omitzero"`
	// Rollouts are the distinct rollout labels of its pods, except for those being deleted. Nil means that none has any.
	Rollouts []RolloutLabels `json:"rollouts,omitzero"`
	// ReadyPods is the number of ready pods, Pods the number that makes the group complete.
	ReadyPods int `json:"readyPods,omitzero"`
	Pods      int `json:"pods,omitzero"`
	// Reason, Pod and Message describe the first pod that keeps the group from being ready. Empty when Ready.
	Reason  string `json:"reason,omitzero"`
	Pod     string `json:"pod,omitzero"`
	Message string `json:"message,omitzero"`
}

// atRevision reports whether the group exists at a revision.
func (g Group) atRevision(revision string) bool { return g.Revision != "" && g.Revision == revision }

// isAvailable reports whether the group is ready, and has been for minReady.
func (g Group) isAvailable(now time.Time, minReady time.Duration) bool {
	return g.Ready && now.Sub(g.ReadySince) >= minReady
}

// release returns the recorded release, or nil.
func (o Observation) release() *record.Release {
	if o.Record == nil {
		return nil
	}
	return o.Record.Release
}

// Workloads returns the added workloads and the user's own, as a copy: callers share the observation.
func (o Observation) Workloads() []Workload { return append(slices.Clip(o.Added), o.Stable) }

// canary returns the added workload that carries the release's update revision.
func (o Observation) canary() *Workload {
	for i := range o.Added {
		if r := o.release(); r != nil && o.Added[i].Carries == r.UpdateRevision && !o.Added[i].Orphaned {
			return &o.Added[i]
		}
	}
	return nil
}

// Target returns the batch that was requested last: from the canary if it has one, else from the record. The later one
// counts. The workload must have a release.
func (o Observation) Target() *record.Target {
	recorded, c := o.Record.Release.Target, o.canary()
	switch {
	case c == nil || c.Target == nil:
		return recorded
	case recorded != nil && recorded.At.After(c.Target.At):
		return recorded
	}
	return c.Target
}

// Identity is what decides whether Lockstep may manage an object.
type Identity struct {
	// AddedTo names the workload whose release added the object. Empty means none.
	AddedTo string `json:"addedTo,omitzero"`
	// CopiedLabels are labels of added workloads on an object that was not added by a release.
	CopiedLabels []string `json:"copiedLabels,omitzero"`
	// ControllerKind and ControllerName identify the controlling owner. Empty means none.
	ControllerKind string `json:"controllerKind,omitzero"`
	ControllerName string `json:"controllerName,omitzero"`
	// UnnumberedGroup is a group-index label that is not a number. Empty means none.
	UnnumberedGroup string `json:"unnumberedGroup,omitzero"`
	// Unobserved: LWS does not report observedGeneration, so it is older than v0.9.0.
	Unobserved bool `json:"unobserved,omitzero"`
	// AppliedBy is the label or annotation of a tool that applies the object from Git. Empty means none.
	AppliedBy string `json:"appliedBy,omitzero"`
	// VolumeClaims is how many volumeClaimTemplates the template has.
	VolumeClaims int `json:"volumeClaims,omitzero"`
}

// CheckWorkload refuses a workload that Lockstep must not manage. The error has an ErrorReason.
func CheckWorkload(o Observation) error {
	switch i := o.Identity; {
	case i.AddedTo != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"%s was added by the release of %q: name that workload instead", o.objectName(), i.AddedTo)
	case len(i.CopiedLabels) > 0:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NAME_TAKEN,
			"%s carries labels of what a release adds (%s), but no release added it; they were probably copied "+
				"with a manifest: remove them, and copied ownerReferences and finalizers",
			o.objectName(), strings.Join(i.CopiedLabels, ", "))
	case i.ControllerName != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER,
			"%s is controlled by %s %q, which would rewrite what Lockstep writes: release it through that object",
			o.objectName(), i.ControllerKind, i.ControllerName)
	case o.Stable.Deleting:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, "%s is being deleted", o.objectName())
	case i.UnnumberedGroup != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED_GROUP_IDENTITY,
			"%s does not number its groups (one has the group-index %q, so groupIdentity is not Ordinal): it has "+
				"no partition then, which Lockstep holds a workload by. Recreate it with groupIdentity Ordinal", o.objectName(), i.UnnumberedGroup)
	case o.hasRoles():
		return checkRoles(o)
	case i.Unobserved:
		return drivererr.New(pb.ErrorReason_ERROR_REASON_WORKLOAD_API_TOO_OLD,
			"the LeaderWorkerSet controller does not report observedGeneration for %s, so it is older than v0.9.0, and counts "+
				"groups as ready while their workers are not: upgrade LWS and its CRDs to v0.9.0 or later", o.objectName())
	}
	return nil
}

// InFlight reports whether a release is not over: an effect of it is neither reverted nor final.
func InFlight(o Observation) bool {
	r := o.release()
	return r != nil && (r.Phase.Unfinished() || len(o.Added) > 0 || o.trafficDrifted())
}

// trafficDrifted reports whether the user's routes and Services differ from their original state, as far as the driver
// can restore them, or whether that is unknown.
func (o Observation) trafficDrifted() bool {
	if o.Traffic == nil {
		return false
	}
	return Unread(o) || o.Traffic.Look(traffic.Desired{}).Stage == traffic.Drifted
}

// Unread reports whether the caches of routing are not synced yet.
func Unread(o Observation) bool {
	return o.Traffic != nil && o.Traffic.Pending()
}

// checkRead refuses, temporarily, a request that depends on whether the last release is over.
func checkRead(o Observation) error {
	r := o.release()
	if r == nil || len(o.Added) > 0 || r.Phase.Unfinished() || !Unread(o) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"the caches do not show yet whether release %q of %s has restored its routes and Services", r.ID, o.objectName())
}

// inProgress returns the error of a request that must wait for the end of the release in flight.
func inProgress(o Observation, text string, args ...any) error {
	err := drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, text, args...), "release_id", o.release().ID)
	return drivererr.WithMetadata(err, "owner", o.release().Owner)
}

// UpToDate reports whether every group runs the template in the spec.
func UpToDate(o Observation) bool {
	now := o.Stable.distinctRevisions()
	return o.Stable.Replicas == 0 || len(now) == 1 && now[0] == o.Stable.Revision
}
