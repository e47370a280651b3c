// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/openkruise/rollouts/api/v1beta1"
	"google.golang.org/protobuf/types/known/durationpb"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/batchrelease"
	"github.com/lockstep-rollouts/lockstep/plugin/kruise/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/plugin/native"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var (
	targetKind   = v1alpha1.GroupVersion.WithKind("RolloutTarget")
	revisionKind = schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "ControllerRevision"}
)

// observe returns everything that a decision needs. It writes nothing.
func (r *Reconciler) observe(ctx context.Context, t *v1alpha1.RolloutTarget) (View, error) {
	v := View{Target: t}
	others := &v1alpha1.RolloutTargetList{}
	name := nameOf(t)
	if err := r.Client.List(ctx, others, client.InNamespace(t.Namespace), client.MatchingFields{host.ByWorkload: name}); err != nil {
		return v, fmt.Errorf("list RolloutTargets of %s: %w", name, err)
	}
	v.Rival, v.Successor = rivalTargets(t, others.Items)
	if v.Rival != "" {
		return v, nil
	}
	var err error
	if v.Workload, err = r.workload(ctx, t); err != nil || v.Workload == nil {
		return v, err
	}
	v.Context, err = host.Look(ctx, r.Driver, &pb.CalculateBatchContextRequest{Workload: refOf(t), IncludeGroups: true})
	if err != nil || v.Context == nil {
		return v, err
	}
	if v.Revisions, err = r.revisions(ctx, t, entryRole(v.Context)); err != nil {
		return v, err
	}
	// Evidence costs requests to the API server, so it is read only when a call depends on it.
	if t.DeletionTimestamp == nil && v.needsEvidence() {
		v.Evidence, err = r.evidence(ctx, t)
	}
	return v, err
}

// rivalTargets returns the oldest target of the workload if that is not t, and whether there is a younger one than t.
func rivalTargets(t *v1alpha1.RolloutTarget, all []v1alpha1.RolloutTarget) (before string, after bool) {
	for i := range all {
		o := &all[i]
		switch {
		case o.Name == t.Name, o.DeletionTimestamp != nil:
		case t.DeletionTimestamp == nil && isOlder(o, t):
			before = o.Name
		default:
			after = true
		}
	}
	return before, after
}

func isOlder(a, b *v1alpha1.RolloutTarget) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// workload reads the workload's metadata. Nil means that it does not exist.
func (r *Reconciler) workload(ctx context.Context, t *v1alpha1.RolloutTarget) (*Workload, error) {
	kind := host.LeaderWorkerSet
	if isSet(t) {
		kind = host.DisaggregatedSet
	}
	w := host.Metadata(kind)
	err := r.Client.Get(ctx, client.ObjectKey{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name}, w)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // It does not exist.
	}
	if err != nil {
		return nil, fmt.Errorf("read %s in namespace %s: %w", objectOf(t), t.Namespace, err)
	}
	return &Workload{Deleting: w.DeletionTimestamp != nil, RolloutID: w.Labels[labelRolloutID]}, nil
}

// revisions reads the leader StatefulSet's ControllerRevisions, which have the labels of the pods' template. If the StatefulSet has
// several for one template, as after an upgrade of LWS, new pods get the newest. Of a DisaggregatedSet the StatefulSets of its entry
// role's children count.
func (r *Reconciler) revisions(ctx context.Context, t *v1alpha1.RolloutTarget, entry string) (map[string]string, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(revisionKind)
	if err := r.Client.List(ctx, list, client.InNamespace(t.Namespace), client.MatchingLabels(leaderSelector(t, entry).MatchLabels)); err != nil {
		return nil, fmt.Errorf("list ControllerRevisions of %s/%s: %w", t.Namespace, nameOf(t), err)
	}
	label := labelRevision
	if isSet(t) {
		label = labelSetRevision
	}
	out, at := map[string]string{}, map[string]metav1.Time{}
	for i := range list.Items {
		o := &list.Items[i]
		// LWS has ControllerRevisions of its own, whose names are not on the pods.
		if c := metav1.GetControllerOf(o); c == nil || c.Kind != "StatefulSet" || c.Name != o.Labels[labelName] {
			continue
		}
		revision, last := o.Labels[label], at[o.Labels[label]]
		if out[revision] == "" || last.Before(&o.CreationTimestamp) {
			out[revision], at[revision] = o.Name, o.CreationTimestamp
		}
	}
	return out, nil
}

func refOf(t *v1alpha1.RolloutTarget) *pb.WorkloadRef {
	return &pb.WorkloadRef{Namespace: t.Namespace, Name: t.Spec.WorkloadRef.Name, Kind: t.Spec.WorkloadRef.Kind}
}

// isSet reports whether the workload is a DisaggregatedSet.
func isSet(t *v1alpha1.RolloutTarget) bool {
	return t.Spec.WorkloadRef.Kind == plugin.KindDisaggregatedSet
}

// nameOf returns the name of the workload as commands take it, objectOf its kind and name, for messages.
func nameOf(t *v1alpha1.RolloutTarget) string   { return plugin.NameOf(refOf(t)) }
func objectOf(t *v1alpha1.RolloutTarget) string { return plugin.ObjectOf(refOf(t)) }

// entryRole returns the role of a DisaggregatedSet that receives requests, "" for a LeaderWorkerSet.
func entryRole(c *pb.BatchContext) string {
	if len(c.GetRoles()) == 0 {
		return ""
	}
	return c.GetRoles()[0].GetName()
}

// Evidence is what Kruise's own objects show of a target's release.
type Evidence struct {
	// Rollout is the Rollout of the target, BatchRelease the one that Kruise made of it. Each is nil if it does not exist.
	Rollout, BatchRelease *unstructured.Unstructured
	// Control is the uid in the target's control info: that of the BatchRelease that has set its partition.
	Control types.UID
}

// batchTarget returns how many groups the current batch asks for, at most what the partition allows, and as the plan spells them: a percentage
// stays one when the groups are scaled. Kruise never raises a partition, as after a scale-up, of which a StatefulSet makes updated pods. The
// new groups of a workload under hold are stable ones.
func batchTarget(r *v1beta1.BatchRelease, allowed, replicas int32) (groups int32, target string) {
	batches, current := r.Spec.ReleasePlan.Batches, int(r.Status.CanaryStatus.CurrentBatch)
	if current >= 0 && current < len(batches) {
		q := batches[current].CanaryReplicas
		if n, err := batchrelease.Scaled(q, replicas); err == nil && n <= int(allowed) {
			return int32(n), q.String() //nolint:gosec // It is between 0 and allowed.
		}
	}
	return allowed, fmt.Sprint(allowed)
}

// batchOf returns the BatchRelease in progress, nil unless it is for this controller revision.
func (e Evidence) batchOf(revision string) *v1beta1.BatchRelease {
	r := &v1beta1.BatchRelease{}
	// A BatchRelease that has not set the partition is no evidence for it.
	if e.BatchRelease == nil || e.BatchRelease.GetUID() != e.Control || host.Decode(e.BatchRelease, r) != nil ||
		revision == "" || r.Status.UpdateRevision != revision {
		return nil
	}
	return r
}

// completed reports whether the Rollout has completed all its steps for this controller revision. Kruise shows the last step as completed
// for a Rollout that it has just observed too, but then without the condition Progressing.
func (e Evidence) completed(revision string) bool {
	var r struct {
		Status struct {
			ObservedGeneration int64
			CanaryStatus       struct{ CanaryRevision, CurrentStepState string }
			Conditions         []metav1.Condition
		}
	}
	if e.Rollout == nil || host.Decode(e.Rollout, &r) != nil {
		return false
	}
	s := r.Status
	progress := meta.FindStatusCondition(s.Conditions, "Progressing")
	return revision != "" && s.CanaryStatus.CanaryRevision == revision && s.CanaryStatus.CurrentStepState == "Completed" &&
		s.ObservedGeneration == e.Rollout.GetGeneration() && progress != nil && (progress.Reason == "Finalising" || progress.Reason == "Completed")
}

// listens reports whether the Rollout takes up a change of the template: Kruise has observed it, it is not disabled, and no BatchRelease is
// left that has ended.
func (e Evidence) listens() bool {
	var r v1beta1.Rollout
	return e.Rollout != nil && !e.leftOver() && host.Decode(e.Rollout, &r) == nil && !r.Spec.Disabled &&
		(r.Status.Phase == v1beta1.RolloutPhaseHealthy || r.Status.Phase == v1beta1.RolloutPhaseProgressing)
}

// leftOver reports whether a BatchRelease has ended and is still there, as after the target was deleted in mid-release. Kruise takes it for
// that of the next release, whose steps then reach no group.
func (e Evidence) leftOver() bool {
	var r v1beta1.BatchRelease
	return e.BatchRelease != nil && host.Decode(e.BatchRelease, &r) == nil && r.Status.Phase == v1beta1.RolloutPhaseCompleted
}

// evidence reads Kruise's objects from the API server: a call follows from them, which the past of a cache must not justify.
func (r *Reconciler) evidence(ctx context.Context, t *v1alpha1.RolloutTarget) (Evidence, error) {
	var e Evidence
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(kruiseKind("RolloutList"))
	if err := r.Reader.List(ctx, all, client.InNamespace(t.Namespace)); err != nil && !isAbsent(err) {
		return e, fmt.Errorf("list the Rollouts of namespace %s: %w", t.Namespace, err)
	}
	// Without Kruise's webhook a target may have several.
	var progressing struct{ RolloutName string }
	_ = json.Unmarshal([]byte(t.Annotations[annotationProgressing]), &progressing) // empty: none
	for i := range all.Items {
		if o := &all.Items[i]; refersTo(o, t) && (e.Rollout == nil || o.GetName() == progressing.RolloutName) {
			e.Rollout = o
		}
	}
	if e.Rollout == nil {
		return e, nil
	}
	var ref metav1.OwnerReference
	if json.Unmarshal([]byte(t.Annotations[annotationControl]), &ref) == nil && ref.Kind == "BatchRelease" {
		e.Control = ref.UID
	}
	o := host.Object(kruiseKind("BatchRelease"))
	switch err := r.Reader.Get(ctx, client.ObjectKeyFromObject(e.Rollout), o); {
	case err == nil:
		e.BatchRelease = o
	case !isAbsent(err):
		return e, fmt.Errorf("read BatchRelease %s/%s: %w", t.Namespace, e.Rollout.GetName(), err)
	}
	return e, nil
}

// refersTo reports whether a Rollout that is not being deleted names the target.
func refersTo(rollout *unstructured.Unstructured, t *v1alpha1.RolloutTarget) bool {
	ref, _, _ := unstructured.NestedStringMap(rollout.Object, "spec", "workloadRef") // another type refers to nothing
	gv, err := schema.ParseGroupVersion(ref["apiVersion"])
	return err == nil && gv.Group == v1alpha1.GroupVersion.Group && ref["kind"] == "RolloutTarget" && ref["name"] == t.Name &&
		rollout.GetDeletionTimestamp() == nil
}

// isAbsent reports whether an object or its kind does not exist.
func isAbsent(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

func kruiseKind(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "rollouts.kruise.io", Version: "v1beta1", Kind: kind}
}

// policyOf returns the driver's policy for a target and a plan. Kruise lowers the partition whatever the plan says, so a plan that the driver
// would reject becomes one batch.
func policyOf(t *v1alpha1.RolloutTarget, p *v1beta1.ReleasePlan) *pb.ReleasePolicy {
	out := &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"100%"}}
	if isSet(t) {
		out.Style = pb.Style_STYLE_CANARY
	}
	if s := t.Spec.MinReadySeconds; s > 0 {
		out.MinReady = durationpb.New(time.Duration(s) * time.Second)
	}
	if s := t.Spec.ProgressDeadlineSeconds; s != nil {
		out.ProgressDeadline = durationpb.New(time.Duration(*s) * time.Second)
	}
	if f := p.FailureThreshold; f != nil {
		if _, err := batchrelease.Scaled(*f, 100); err == nil {
			out.FailureThreshold = f.String()
		}
	}
	if batches, err := batchrelease.Batches(p, ptr.Deref(t.Spec.Replicas, 0)); err == nil {
		out.Batches = batches
	}
	if !isSet(t) && len(validation.IsValidLabelValue(p.RolloutID)) == 0 { // the driver labels no pods of a DisaggregatedSet
		out.RolloutId = p.RolloutID
	}
	return out
}

// rolloutFields judges the fields of a Rollout's spec, by what Kruise Rollouts v0.6.2 and v0.6.3 do with them for a RolloutTarget. Of
// such a kind, which it does not know, it replaces the pods in place whatever the style, and adds no metadata to them.
var rolloutFields = native.Table{
	{Path: "workloadRef"},
	{Path: "disabled"},
	{Path: "strategy.paused"},
	{Path: "strategy.canary.steps[].replicas"},
	{Path: "strategy.canary.steps[].pause"},
	{Path: "strategy.canary.steps[].traffic", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.steps[].matches", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.steps[].requestHeaderModifier", Note: "with `trafficRoutings`"},
	{Path: "strategy.canary.trafficRoutings"},
	{Path: "strategy.canary.failureThreshold"},
	{Path: "strategy.canary.patchPodTemplateMetadata", Verdict: native.Refused, Note: "groups get no other metadata: remove it"},
	{Path: "strategy.canary.enableExtraWorkloadForCanary", Verdict: native.Refused, Note: inPlace},
	{Path: "strategy.canary.trafficRoutingRef", Verdict: native.Refused, Note: "TrafficRouting objects do not fit a target: use `trafficRoutings`"},
	{Path: "strategy.canary.disableGenerateCanaryService", Verdict: native.Refused, Note: "would leave both revisions behind one Service: remove it"},
	{Path: "strategy.blueGreen", Verdict: native.Refused, Note: "groups are replaced in place: use `canary`"},
}

// planFields judges the fields of a BatchRelease's spec.releasePlan, which Kruise writes.
var planFields = native.Table{
	{Path: "batches[].canaryReplicas"},
	{Path: "batchPartition"},
	{Path: "rolloutID"},
	{Path: "failureThreshold"},
	{Path: "finalizingPolicy"},
	{Path: "patchPodTemplateMetadata", Verdict: native.Refused, Note: "groups get no other metadata: remove it"},
	{Path: "rollingStyle", Verdict: native.Refused, Accepts: "Partition", Note: inPlace},
	{Path: "enableExtraWorkloadForCanary", Verdict: native.Refused, Note: inPlace},
}

const inPlace = "groups are replaced in place: remove it (v1alpha1: annotation `rollouts.kruise.io/rolling-style: partition`)"

// refusalOf returns why no release begins with a Rollout and the BatchRelease that Kruise made of it, as the API server has them. It returns
// nil if one may. Either object may be nil.
func refusalOf(rollout, batchRelease *unstructured.Unstructured) error {
	plan, _ := specOf(batchRelease)["releasePlan"].(map[string]any)
	findings := append(rolloutFields.Judge("Rollout: spec", specOf(rollout)), planFields.Judge("BatchRelease: spec.releasePlan", plan)...)
	if err := native.Refusal(findings); err != nil {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "%v. Restore the old template, wait until the Rollout is Healthy, "+
			"correct the Rollout, and change the template again", err)
	}
	return nil
}

func specOf(o *unstructured.Unstructured) (spec map[string]any) {
	if o != nil {
		spec, _ = o.Object["spec"].(map[string]any)
	}
	return spec
}
