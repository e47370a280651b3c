// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	disaggregatedutils "sigs.k8s.io/lws/pkg/utils/disaggregatedset"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// digest identifies the part of a LeaderWorkerSet's spec of which LWS makes revisions.
type digest [sha256.Size]byte

// revisioned is that part, as LWS stores it in ControllerRevisions (pkg/utils/revision of LWS v0.9.0).
type revisioned struct {
	Template lws.LeaderWorkerTemplate `json:"leaderWorkerTemplate"`
	Network  *lws.NetworkConfig       `json:"networkConfig"`
}

// digestOf returns the digest of a spec. It fails only for values that the API server would never return.
func digestOf(template lws.LeaderWorkerTemplate, network *lws.NetworkConfig) (digest, error) {
	// LWS does the same, so that the default that its webhook sets later makes no new revision.
	network = cmp.Or(network, &lws.NetworkConfig{SubdomainPolicy: ptr.To(lws.SubdomainShared)})
	raw, err := json.Marshal(revisioned{template, network})
	if err != nil {
		return digest{}, fmt.Errorf("encode template: %w", err)
	}
	return sha256.Sum256(raw), nil
}

// SameTemplate reports whether LWS makes one revision of both.
func SameTemplate(a, b record.Template) bool {
	one, errOne := digestOf(a.LeaderWorkerTemplate, a.NetworkConfig)
	two, errTwo := digestOf(b.LeaderWorkerTemplate, b.NetworkConfig)
	return errOne == nil && errTwo == nil && one == two && rolesRevision(a) == rolesRevision(b)
}

// rolesRevision returns the revision that LWS makes of the roles of a template.
func rolesRevision(t record.Template) string {
	roles := make([]disaggregated.DisaggregatedRoleSpec, len(t.Roles))
	for i, role := range t.Roles {
		roles[i].Name, roles[i].Spec.LeaderWorkerTemplate = role.Name, role.Spec.LeaderWorkerTemplate
	}
	return disaggregatedutils.ComputeRevision(roles)
}

// revisionView is the cached form of a ControllerRevision of LWS. A template's digest leads to its revision hash, independent of
// the order of LWS's other writes.
type revisionView struct {
	metav1.ObjectMeta

	set    string // the LeaderWorkerSet's name
	owner  types.UID
	hash   string // the value of the template-revision-hash label of its groups
	number int64
	digest digest
	live   plan.LiveFields // zero: the template can't be read
	// raw is the template as LWS stores it: a release saves it in the record before the last group that runs it is replaced.
	raw []byte
}

// workload returns the key of the LeaderWorkerSet that it is a revision of.
func (r *revisionView) workload() types.NamespacedName {
	return types.NamespacedName{Namespace: r.Namespace, Name: r.set}
}

// stripRevision is the ControllerRevision informer's transform.
func stripRevision(cr *appsv1.ControllerRevision) *revisionView {
	v := &revisionView{
		ObjectMeta: stripMeta(&cr.ObjectMeta),
		set:        strings.Clone(cr.Labels[lws.SetNameLabelKey]),
		hash:       strings.Clone(cr.Labels[lws.RevisionKey]),
		number:     cr.Revision,
	}
	if owner := metav1.GetControllerOf(cr); owner != nil {
		v.owner = owner.UID
		// Another controller's: any editor of a namespace may create a StatefulSet with large revisions that have the label.
		if controllerOf(cr, lws.GroupVersion.Group, Kind) == "" {
			return v
		}
	}
	v.raw = cr.Data.Raw
	stored := struct {
		Spec revisioned `json:"spec"`
	}{}
	// An unreadable revision, or one that is not LWS's, matches no template.
	if err := json.Unmarshal(cr.Data.Raw, &stored); err != nil {
		return v
	}
	d, err := digestOf(stored.Spec.Template, stored.Spec.Network)
	if err != nil {
		return v
	}
	v.digest = d
	v.live = plan.LiveFieldsOf(&stored.Spec.Template, stored.Spec.Network)
	return v
}
