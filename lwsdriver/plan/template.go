// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Fields of a template that LWS v0.9 and v0.10 read from the spec although the groups are at another revision.
const (
	FieldSize      = "spec.leaderWorkerTemplate.size"
	FieldSubdomain = "spec.networkConfig.subdomainPolicy"
	FieldRestart   = "spec.leaderWorkerTemplate.restartPolicy"
	FieldClaims    = "spec.leaderWorkerTemplate.volumeClaimTemplates"
	FieldRetention = "spec.leaderWorkerTemplate.persistentVolumeClaimRetentionPolicy"
)

// LiveFields are the values of these fields in a template, as LWS applies them.
type LiveFields struct {
	// Size is the number of pods of a group. Zero means unknown.
	Size      int
	subdomain lws.SubdomainPolicy
	restart   lws.RestartPolicyType
	claims    []corev1.PersistentVolumeClaim
	retention string
}

// LiveFieldsOf returns the fields of a template.
func LiveFieldsOf(t *lws.LeaderWorkerTemplate, network *lws.NetworkConfig) LiveFields {
	f := LiveFields{Size: int(ptr.Deref(t.Size, 1)), subdomain: lws.SubdomainShared, restart: t.RestartPolicy}
	if network != nil {
		f.subdomain = ptr.Deref(network.SubdomainPolicy, lws.SubdomainShared)
	}
	switch f.restart { // LWS's webhook has the same defaults
	case "":
		f.restart = lws.RecreateGroupOnPodRestart
	case lws.DeprecatedDefaultRestartPolicy:
		f.restart = lws.NoneRestartPolicy
	case lws.RecreateGroupOnPodRestart, lws.RecreateGroupAfterStart, lws.NoneRestartPolicy:
	}
	for i := range t.VolumeClaimTemplates {
		c := &t.VolumeClaimTemplates[i]
		// LWS copies nothing else to StatefulSets, so nothing else makes the API server refuse them.
		f.claims = append(f.claims, corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: c.Name},
			Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: c.Spec.AccessModes, StorageClassName: c.Spec.StorageClassName, VolumeMode: c.Spec.VolumeMode,
				Resources: c.Spec.Resources,
			},
		})
	}
	if r := t.PersistentVolumeClaimRetentionPolicy; r != nil {
		f.retention = fmt.Sprintf("whenDeleted %s, whenScaled %s", r.WhenDeleted, r.WhenScaled)
	}
	return f
}

// TemplateChange is a field in which the template in the spec differs from that of the groups, and which affects these groups
// although the hold keeps them at their revision.
type TemplateChange struct {
	// Field is its path in the LeaderWorkerSet.
	Field string `json:"field,omitzero"`
	// Old is its value in the groups' template, New the one in the spec.
	Old string `json:"old,omitzero"`
	New string `json:"new,omitzero"`
	// Effect is what happens to groups of the old template.
	Effect string `json:"effect,omitzero"`
}

func (c TemplateChange) String() string {
	return fmt.Sprintf("%s changes from %s to %s: %s", c.Field, c.Old, c.New, c.Effect)
}

// CompareLive returns the changes from the template of the groups to the one in the spec that the hold does not cover, with
// their effects as in the source of LWS v0.9.0 and v0.10.0 (pkg/controllers).
func CompareLive(groups, spec LiveFields) []TemplateChange {
	var all []TemplateChange
	add := func(field, before, after, effect string) {
		all = append(all, TemplateChange{Field: field, Old: before, New: after, Effect: effect})
	}
	if !apiequality.Semantic.DeepEqual(groups.claims, spec.claims) {
		add(FieldClaims, claimsText(groups.claims), claimsText(spec.claims),
			"LeaderWorkerSet can't change them in its StatefulSets, so it stops applying this object: no scaling, no update, no "+
				"rollback, until the old ones are restored")
	}
	if a, b := groups.Size, spec.Size; a != b {
		add(FieldSize, fmt.Sprint(a), fmt.Sprint(b), sizeEffect(a, b))
	}
	if a, b := groups.subdomain, spec.subdomain; a != b {
		add(FieldSubdomain, string(a), string(b), "in a group that restarts, the leader has the old subdomain and the workers have the "+
			"new one, so the workers can't resolve the leader's address")
	}
	if a, b := groups.restart, spec.restart; a != b {
		add(FieldRestart, string(a), string(b), restartEffect(b))
	}
	if a, b := groups.retention, spec.retention; a != b {
		add(FieldRetention, orNone(a), orNone(b), "it applies to the claims of all leaders at once, and to those of workers in groups that restart")
	}
	return all
}

// sizeEffect describes groups of size a while the spec has size b.
func sizeEffect(a, b int) string {
	switch {
	case a == 1:
		return fmt.Sprintf("leaders of the old template get %d workers, also without a restart", b-1)
	case b == 1:
		return "a group that restarts gets no workers, and never becomes complete"
	}
	return fmt.Sprintf("a group that restarts gets a leader of the old template and %d workers instead of %d", b-1, a-1)
}

func restartEffect(after lws.RestartPolicyType) string {
	if after == lws.NoneRestartPolicy {
		return "it applies to all groups at once: a pod that restarts no longer restarts its group"
	}
	return "it applies to all groups at once: a group is recreated if a container of its pods restarts, or has restarted before"
}

// claimsText describes each claim by all that LWS applies of it.
func claimsText(claims []corev1.PersistentVolumeClaim) string {
	all := make([]string, 0, len(claims))
	for _, c := range claims {
		words := []string{c.Name}
		if storage, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
			words = append(words, storage.String())
		}
		if storage, ok := c.Spec.Resources.Limits[corev1.ResourceStorage]; ok {
			words = append(words, "at most "+storage.String())
		}
		for _, m := range c.Spec.AccessModes {
			words = append(words, string(m))
		}
		if class := ptr.Deref(c.Spec.StorageClassName, ""); class != "" {
			words = append(words, "of class "+class)
		}
		if m := c.Spec.VolumeMode; m != nil {
			words = append(words, string(*m))
		}
		all = append(all, strings.Join(words, " "))
	}
	return orNone(strings.Join(all, ", "))
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// CompareTemplates is CompareLive for whole templates.
func CompareTemplates(groups, spec record.Template) []TemplateChange {
	return CompareLive(LiveFieldsOf(&groups.LeaderWorkerTemplate, groups.NetworkConfig), LiveFieldsOf(&spec.LeaderWorkerTemplate, spec.NetworkConfig))
}

// WaitingRevision returns the revision of those groups that do not run the template in the spec. With several it is the stable
// revision of the release, if there is one, and if that is one of them. A rollback restarts groups at the stable revision, also if none is left.
// Empty means that every group runs the template in the spec.
func WaitingRevision(w Workload, release *record.Release) string {
	others := slices.DeleteFunc(w.distinctRevisions(), func(r string) bool { return r == w.Revision })
	restarts := release != nil && release.Phase == record.RollingBack && release.StableRevision != w.Revision
	switch {
	case restarts, release != nil && slices.Contains(others, release.StableRevision):
		return release.StableRevision
	case len(others) == 0:
		return ""
	}
	return others[0]
}

// unsafeChange returns the change of a field, nil if it does not change.
func (o Observation) unsafeChange(field string) *TemplateChange {
	for i := range o.UnsafeChanges {
		if o.UnsafeChanges[i].Field == field {
			return &o.UnsafeChanges[i]
		}
	}
	return nil
}

// mixingChange returns the change by which LWS would build a group that restarts from two revisions, nil if there is none.
func (o Observation) mixingChange() *TemplateChange {
	return cmp.Or(o.unsafeChange(FieldSize), o.unsafeChange(FieldSubdomain))
}

// UnsafeText describes the changes that the hold does not cover. Empty means that there are none.
func UnsafeText(o Observation) string {
	if len(o.UnsafeChanges) == 0 {
		return ""
	}
	all := make([]string, 0, len(o.UnsafeChanges))
	for _, c := range o.UnsafeChanges {
		all = append(all, c.String())
	}
	return "the hold does not cover every change of this template: " + strings.Join(all, "; ")
}

// explainTemplate adds the changes that the hold does not cover to the message of a decision.
func explainTemplate(o Observation, d Decision) Decision {
	if text := UnsafeText(o); text != "" && d.Reason != ReasonTemplateRefused {
		d.Message = strings.TrimPrefix(d.Message+"; "+text, "; ")
	}
	return d
}

// templateProblem returns why a release of the template in the spec can't work, or "" if it can.
func templateProblem(o Observation, inPlace bool) string {
	if o.RolesWaiting != "" {
		return fmt.Sprintf("the template of %s has the roles %s, and its groups have %s: a release adds, removes and reorders no roles, and the groups stay as "+
			"they are. Restore the roles; or, without a release, disown the set (lockstep disown %s), and LeaderWorkerSet rolls it by itself",
			o.objectName(), o.RolesWaiting, roleNamesOf(o.Roles), o.inCommands())
	}
	if c := o.unsafeChange(FieldClaims); c != nil {
		return fmt.Sprintf("%s of LeaderWorkerSet %s changes from %s to %s, which LeaderWorkerSet accepts and never applies: the claims of a "+
			"StatefulSet are immutable, so it stops applying this object, whatever the style of the release. Restore the old "+
			"volumeClaimTemplates; to have new ones, create a LeaderWorkerSet with another name", FieldClaims, o.Key, c.Old, c.New)
	}
	if c := o.mixingChange(); c != nil && inPlace {
		return fmt.Sprintf("%s of LeaderWorkerSet %s changes from %s to %s, and a release in place needs groups of both: LeaderWorkerSet v0.9 and "+
			"v0.10 create the workers of every group by the value in the spec, so a group of the old revision that restarts or is rolled back "+
			"would be built from two revisions. Release it in style canary or blue-green, or restore the old value",
			c.Field, o.Key, c.Old, c.New)
	}
	return ""
}

// checkTemplate refuses a release that can't work.
func (b Begin) checkTemplate(o Observation) error {
	if text := templateProblem(o, InPlace(b.Policy.GetStyle())); text != "" {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_UNSUPPORTED, "%s", text)
	}
	return nil
}

// warnUnsafe warns of changes that the hold does not cover.
func (b Begin) warnUnsafe(o Observation) []*pb.Warning {
	if text := UnsafeText(o); text != "" {
		return []*pb.Warning{{Code: CodeUnsafeTemplate, Message: fmt.Sprintf("LeaderWorkerSet %s: %s", o.Key, text)}}
	}
	return nil
}

// CodeUnsafeTemplate is the code of warnings, findings and events about changes that the hold does not cover.
const CodeUnsafeTemplate = "UnsafeTemplateChange"

// refuseTemplate fails a release whose template was changed to one that can't be released. The groups stay as they are.
func refuseTemplate(o Observation) *Decision {
	text := templateProblem(o, o.inPlace())
	if text == "" && o.Traffic != nil {
		// Initialize has checked the template before. LeaderWorkerSet would replace every group by ones that get no requests.
		if err := o.Traffic.CheckTemplate(); err != nil {
			text = fmt.Sprintf("the template of %s can't be released any more: %s", o.objectName(), drivererr.ProblemOf(err).Message)
		}
	}
	if text != "" {
		return &Decision{State: pb.State_STATE_FAILED, Reason: ReasonTemplateRefused, Message: text}
	}
	return nil
}
