// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/capacity"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// Inventory is everything that the rules judge.
type Inventory struct {
	// Workload is the LeaderWorkerSet, or a DisaggregatedSet as one: its kind and metadata, with the spec of one of its roles. It must not be
	// modified.
	Workload *lws.LeaderWorkerSet
	// Roles are those of a DisaggregatedSet, and Slices is how often it has them all. A LeaderWorkerSet has none.
	Roles  []Role
	Slices int
	// Rolling is the user's own rolling update configuration, also under hold.
	Rolling lws.RollingUpdateConfiguration
	// Revision is the one that its groups run. Empty means unknown.
	Revision string
	// Unsafe are the changes of the template that affect groups of the old one.
	Unsafe []plan.TemplateChange
	// Old is the template of the groups if it is not the one in the spec. Nil means unknown, or none.
	Old *lws.LeaderWorkerTemplate
	// Policy is that of the planned release. Its style is unspecified for the workload's own rolling update.
	Policy record.Policy
	// Force begins a blue-green release although it exceeds a quota.
	Force bool
	// Expect is what no object contains.
	Expect Expectations

	// Objects in the workload's namespace.
	Services []*corev1.Service
	Budgets  []*policyv1.PodDisruptionBudget
	Quotas   []*corev1.ResourceQuota
	// Claims are the existing PersistentVolumeClaims that the templates name.
	Claims []*corev1.PersistentVolumeClaim
	// Autoscalers are those that scale the workload.
	Autoscalers []plan.Autoscaler
	// Routes are the HTTPRoutes and GRPCRoutes of the policy, and possibly others.
	Routes []traffic.Route
	// Pools are the InferencePools of the namespace if the policy names one.
	Pools []*unstructured.Unstructured
	// Free is the free capacity of the nodes.
	Free capacity.Free

	// Unseen are the sources that were not read, with the reason.
	Unseen map[Source]string

	// part is set in the inventory of a role.
	part *part
}

// Expectations are what no object in the cluster contains.
type Expectations struct {
	// LongestRequest is how long the longest request takes. Zero means unknown.
	LongestRequest time.Duration
	// EndpointPropagation is how long clients may send requests to a pod that is being deleted. Zero means DefaultPropagation.
	EndpointPropagation time.Duration
	// HeaderRoutes: the release routes requests by header or cookie.
	HeaderRoutes bool
}

// DefaultPropagation is how long proxies and gateways may take to remove an endpoint, in a cluster that is not overloaded.
const DefaultPropagation = 5 * time.Second

// LongestRequestUnknown is why LongestRequests was not read where it was not set.
const LongestRequestUnknown = "how long it takes was not set (--longest-request)"

// Source is something that a rule reads, as messages call it.
type Source string

// What rules read besides the workload's own spec.
const (
	Status          Source = "the workload's status"
	Services        Source = "Services"
	Budgets         Source = "PodDisruptionBudgets"
	Quotas          Source = "ResourceQuotas"
	Claims          Source = "PersistentVolumeClaims"
	Autoscalers     Source = "autoscalers"
	Nodes           Source = "nodes"
	Routes          Source = "routes"
	LongestRequests Source = "the longest request"
)

// NoteUnread notes the sources that could not be read, by their errors. A source that was read has none.
func (s *Inventory) NoteUnread(unread map[Source]error) {
	for source, err := range unread {
		if err != nil {
			s.Unseen[source] = err.Error()
		}
	}
}

// replicas returns the number of groups in the spec, in all slices.
func (s *Inventory) replicas() int { return replicasOf(s.Workload) * max(s.Slices, 1) }

// Peak returns how many groups a release adds at its peak: those of a role, and units of a DisaggregatedSet.
func (s *Inventory) Peak() capacity.Peak {
	if s.part != nil {
		return s.part.peak
	}
	return capacity.PeakOf(s.Policy, s.Rolling, s.replicas())
}

// Need returns the groups of the peak, and so what they request.
func (s *Inventory) Need() capacity.Need {
	n := capacity.Need{
		Template: s.Workload.Spec.LeaderWorkerTemplate, Groups: s.Peak().Groups(),
		Exclusive: s.Workload.Annotations[lws.ExclusiveKeyAnnotationKey], Namespace: s.Workload.Namespace,
	}
	if len(s.Roles) > 0 {
		// Groups of a role have its own template and surge.
		n = s.role(0).Need()
	}
	for i := 1; i < len(s.Roles); i++ {
		n.Others = append(n.Others, s.role(i).Need())
	}
	return n
}

// style returns the policy's style for messages.
func (s *Inventory) style() string {
	switch s.Policy.Style {
	case pb.Style_STYLE_CANARY:
		return "a canary release"
	case pb.Style_STYLE_BLUE_GREEN:
		return "a blue-green release"
	case pb.Style_STYLE_PARTITION:
		return "a release in place"
	default:
		return "the rolling update"
	}
}

// The kinds of workloads.
const (
	kind    = plugin.KindLeaderWorkerSet
	kindSet = plugin.KindDisaggregatedSet
)

// kind returns the workload's kind. Clients return a LeaderWorkerSet without it.
func (s *Inventory) kind() string { return cmp.Or(s.Workload.Kind, kind) }

// Paths in a LeaderWorkerSet.
const (
	templateField = "spec.leaderWorkerTemplate"
	rollingField  = "spec.rolloutStrategy.rollingUpdateConfiguration"
)

// template is a pod template and its path.
type template struct {
	*corev1.PodTemplateSpec

	field string
	// leader: leaders are created from it.
	leader bool
}

// before returns the inventory with the template of the groups in the spec. The template must be known.
func (s *Inventory) before() *Inventory {
	old, w := *s, *s.Workload
	w.Spec.LeaderWorkerTemplate, old.Workload = *s.Old, &w
	return &old
}

// leader returns the template of leaders.
func (s *Inventory) leader() template {
	t := &s.Workload.Spec.LeaderWorkerTemplate
	if t.LeaderTemplate != nil {
		return template{t.LeaderTemplate, templateField + ".leaderTemplate", true}
	}
	return template{&t.WorkerTemplate, templateField + ".workerTemplate", true}
}

// templates returns all pod templates, of all roles.
func (s *Inventory) templates() (all []template) {
	for i := range s.Roles {
		all = append(all, s.role(i).templates()...)
	}
	if len(all) > 0 {
		return all
	}
	all = append(all, s.leader())
	// With one template for all pods the leader's stands for the workers', too.
	if t := &s.Workload.Spec.LeaderWorkerTemplate; t.LeaderTemplate != nil && ptr.Deref(t.Size, 1) > 1 {
		all = append(all, template{&t.WorkerTemplate, templateField + ".workerTemplate", false})
	}
	return all
}

// container is a container that runs as long as its pod.
type container struct {
	*corev1.Container

	field string
}

// containers returns those that run as long as the pod, sidecars last.
func (t template) containers() []container {
	var all []container
	for i := range t.Spec.Containers {
		all = append(all, container{&t.Spec.Containers[i], fmt.Sprintf("%s.spec.containers[%d]", t.field, i)})
	}
	for i := range t.Spec.InitContainers {
		c := &t.Spec.InitContainers[i]
		if ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways {
			all = append(all, container{c, fmt.Sprintf("%s.spec.initContainers[%d]", t.field, i)})
		}
	}
	return all
}

// first returns a field of the first container, which is assumed to serve.
func (t template) first(field string) string { return t.field + ".spec.containers[0]." + field }

func replicasOf(w *lws.LeaderWorkerSet) int { return int(ptr.Deref(w.Spec.Replicas, 1)) }

// Role is a role of a DisaggregatedSet.
type Role struct {
	Name string
	// Workload is the LeaderWorkerSet that LWS creates for the role.
	Workload *lws.LeaderWorkerSet
	// App is the label app that LWS gives its next pods, "" if it is unknown.
	App string
}

// IsLWSLabel reports whether LWS sets a label on the children of a DisaggregatedSet and on their pods, also over the user's own.
func IsLWSLabel(label string) bool {
	return label == "app" || strings.HasPrefix(label, disaggregated.GroupVersion.Group+"/")
}

// NewRole returns a role of a set. Child is the LeaderWorkerSet whose groups serve now, nil if there is none.
func NewRole(set metav1.Object, role disaggregated.DisaggregatedRoleSpec, child *lws.LeaderWorkerSet) Role {
	t := role.LeaderWorkerSetTemplateSpec.DeepCopy()
	w := &lws.LeaderWorkerSet{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	w.Namespace, w.Name = set.GetNamespace(), set.GetName()+"-"+role.Name
	marks := map[string]string{disaggregated.SetNameLabelKey: set.GetName(), disaggregated.RoleLabelKey: role.Name, "app": w.Name}
	// Services and budgets select by the labels of the pods that exist.
	if child != nil {
		w.Name, marks = child.Name, maps.Clone(child.Labels)
		maps.DeleteFunc(marks, func(key, _ string) bool { return !IsLWSLabel(key) })
	}
	for _, pod := range []*corev1.PodTemplateSpec{w.Spec.LeaderWorkerTemplate.LeaderTemplate, &w.Spec.LeaderWorkerTemplate.WorkerTemplate} {
		if pod != nil && pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		if pod != nil {
			maps.Copy(pod.Labels, marks)
		}
	}
	return Role{Name: role.Name, Workload: w}
}

// AppOf returns the label app that LWS gives the pods of a role, in the slice of a child that serves now. LWS has slices from v0.10.0 on.
func AppOf(set, role string, child *lws.LeaderWorkerSet, sliced bool) string {
	if sliced {
		set += "-" + cmp.Or(child.Labels[disaggregated.GroupVersion.Group+"/slice"], "0")
	}
	return set + "-" + role
}

// part is what an inventory of a role has beside the role itself.
type part struct {
	// set is the inventory of the DisaggregatedSet.
	set   *Inventory
	index int
	peak  capacity.Peak
}

// role returns the inventory of a role.
func (s *Inventory) role(index int) *Inventory {
	r := *s
	r.Workload, r.Roles = s.Roles[index].Workload, nil
	r.Rolling = ptr.Deref(r.Workload.Spec.RolloutStrategy.RollingUpdateConfiguration, lws.RollingUpdateConfiguration{MaxUnavailable: intstr.FromInt32(1)})
	role := plan.Role{Replicas: replicasOf(r.Workload)}
	_, role.MaxSurge = plan.PaceOf(r.Workload.Spec, role.Replicas)
	r.part = &part{set: s, index: index, peak: capacity.Peak{Added: plan.PeakOf(s.Policy.Style, role, max(s.Slices, 1))}}
	return &r
}

// judged returns the inventories that a rule judges: that of the workload, or those of the roles of a DisaggregatedSet.
func (rule Rule) judged(s *Inventory) []*Inventory {
	if rule.Whole || len(s.Roles) == 0 {
		return []*Inventory{s}
	}
	all := make([]*Inventory, 0, len(s.Roles))
	for i := range s.Roles {
		all = append(all, s.role(i))
	}
	return all
}

// inSet returns a hit in a role as one in its DisaggregatedSet.
func (p *part) inSet(h Hit) Hit {
	if p == nil {
		return h
	}
	h.Message = fmt.Sprintf("role %s: %s", p.set.Roles[p.index].Name, h.Message)
	// The field of another object, such as a Service, is not in the set.
	if h.Object == nil {
		h.Field = fmt.Sprintf("spec.roles[%d].%s", p.index, h.Field)
	}
	return h
}
