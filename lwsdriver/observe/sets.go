// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	disaggregatedutils "sigs.k8s.io/lws/pkg/utils/disaggregatedset"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/informer"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

// KindSet is the kind of the workloads that have roles.
const KindSet = plugin.KindDisaggregatedSet

// The resources of DisaggregatedSets, and of the bounds of their children.
var (
	SetsResource   = disaggregated.GroupVersion.WithResource("disaggregatedsets")
	BoundsResource = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "replicabounds"}
)

// BoundsKind is the kind of the bounds.
const BoundsKind = "ReplicaBounds"

// sliceLabel is on the children of a DisaggregatedSet from LWS v0.10.0 on.
const sliceLabel = "disaggregatedset.x-k8s.io/slice"

// enforcesLabel is on the admission policies that enforce bounds, and on their bindings.
const enforcesLabel = "lockstep.dev/enforces"

// KeyFor returns the key of a workload of a kind: its namespace, and its name as [plugin.NameOf] returns it.
func KeyFor(kind, namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: plugin.NameOf(&pb.WorkloadRef{Kind: kind, Name: name})}
}

// IsSet reports whether a key is that of a DisaggregatedSet.
func IsSet(key types.NamespacedName) bool { return plugin.IsSet(key.Name) }

// RefOf returns the workload that a key names.
func RefOf(key types.NamespacedName) *pb.WorkloadRef {
	ref := plugin.RefOf(key.Namespace, key.Name)
	ref.Kind = plugin.KindOf(ref)
	return ref
}

// Object returns the kind, namespace and name of a workload, for messages.
func Object(key types.NamespacedName) string {
	ref := RefOf(key)
	return fmt.Sprintf("%s %s/%s", ref.GetKind(), ref.GetNamespace(), ref.GetName())
}

// Sets are the caches of DisaggregatedSets, of the bounds of their children, and of what enforces these. The last stay empty where there is
// no DisaggregatedSet: bounds may outlive theirs.
type Sets struct {
	sets, bounds, policies, bindings *informer.Informer
	// scalers is filled once a role has its number of groups in one.
	scalers *informer.Informer
}

// Set is a cached DisaggregatedSet.
type Set struct {
	metav1.ObjectMeta

	Roles  []plan.Role
	Slices int
	// Sliced is true if LWS has slices, as it has from v0.10.0 on.
	Sliced bool
	// Revision is the hash by which LWS names its children.
	Revision string
	// Specs are those of the roles.
	Specs []disaggregated.DisaggregatedRoleSpec
	// View is the set as a workload: its metadata, and the spec of its first role.
	View *lws.LeaderWorkerSet
}

// BoundsObject is a cached ReplicaBounds.
type BoundsObject struct {
	metav1.ObjectMeta

	Bounds plan.Bounds
	// ChangedBy is the field manager that wrote them after Lockstep. Empty means none that is known.
	ChangedBy string
	// Problem is why it can't be read, "" if it can.
	Problem string
}

func (o *Observer) newSets() *Sets {
	s, client, namespace := &Sets{}, o.config.Dynamic, o.config.Namespace
	config := func(resource schema.GroupVersionResource, of dynamic.ResourceInterface, selector string) informer.Config {
		return informer.Config{
			Source: informer.NewSource(resource, client, of, selector), Example: &unstructured.Unstructured{}, Discovery: o.config.Core.Discovery(),
			RetryPeriod: discoveryPeriod, Changed: o.allChanged,
		}
	}
	sets := config(SetsResource, client.Resource(SetsResource).Namespace(namespace), "")
	sets.Transform = informer.TryTransform(stripSet)
	sets.Indexers = cache.Indexers{
		trafficIndex:    informer.Index(func(set *Set) []string { return carriersOf(set.View) }),
		roleScalerIndex: informer.Index((*Set).roleScalers),
	}
	sets.Handler = informer.OnChange(func(before, after *Set) {
		if before == nil {
			s.Start()
		}
		if after != nil && after.hasScaledRole() {
			s.scalers.Start()
			s.scalers.Recheck() // LWS may have been upgraded since
		}
		// The watch may have missed that it was deleted and recreated.
		if before != nil && (after == nil || after.UID != before.UID) {
			o.deleted(before.Key())
		}
		for _, key := range informer.Keys(before, after, (*Set).Key) {
			o.changed(key)
		}
	})
	s.sets = informer.New(sets)
	bounds := config(BoundsResource, client.Resource(BoundsResource).Namespace(namespace), "")
	bounds.Indexers = cache.Indexers{trafficIndex: informer.Index(carriersOfBounds)}
	bounds.Transform, bounds.Handler = informer.Transform(stripBounds), informer.OnKeys((*BoundsObject).key, o.changed)
	s.bounds = informer.New(bounds)
	scalers := config(RoleScalersResource, client.Resource(RoleScalersResource).Namespace(namespace), "")
	scalers.Transform = informer.TryTransform(stripRoleScaler)
	scalers.Handler = informer.OnKeys((*roleScaler).key, func(scaler types.NamespacedName) {
		for _, set := range s.scaledBy(scaler) {
			o.changed(set)
		}
	})
	s.scalers = informer.New(scalers)
	enforcing := func(name string) *informer.Informer {
		resource := admissionv1.SchemeGroupVersion.WithResource(name)
		policies := config(resource, client.Resource(resource), enforcesLabel+"=bounds")
		policies.Transform = informer.Transform(stripMetadata)
		policies.Handler = informer.OnChange(func(_, _ any) {
			s.bounds.Recheck() // their kind is installed together with the policies
			o.allChanged()
		})
		return informer.New(policies)
	}
	s.policies, s.bindings = enforcing("validatingadmissionpolicies"), enforcing("validatingadmissionpolicybindings")
	return s
}

// informers returns the caches in the order in which they are needed.
func (s *Sets) informers() []*informer.Informer {
	return []*informer.Informer{s.sets, s.bounds, s.policies, s.bindings, s.scalers}
}

// Start fills the caches that every DisaggregatedSet needs, and looks again for kinds that were not installed.
func (s *Sets) Start() {
	for _, i := range s.informers() {
		// LWS v0.9.0 has no scalers, so they are not looked for until a role has one.
		if i.Recheck(); i != s.scalers {
			i.Start()
		}
	}
}

// Listed reports whether the sets are known, or can't be. Without any, no other cache is waited for.
func (s *Sets) Listed() bool { return !s.sets.Pending() }

// Pending reports whether the caches are still being filled.
func (s *Sets) Pending() bool {
	return slices.ContainsFunc(s.informers(), (*informer.Informer).Pending) ||
		!s.scalers.Started() && len(s.sets.GetIndexer().ListIndexFuncValues(roleScalerIndex)) > 0
}

func (s *Sets) sources() (all []*informer.Source) {
	for _, i := range s.informers() {
		all = append(all, i.Source())
	}
	return all
}

// Get returns the set of a key, nil if it does not exist or the key is not one of a set.
func (s *Sets) Get(key types.NamespacedName) *Set {
	if !IsSet(key) {
		return nil
	}
	return informer.Get[*Set](s.sets, types.NamespacedName{Namespace: key.Namespace, Name: RefOf(key).GetName()})
}

// Bounds returns the bounds of a set's children, nil if there are none.
func (s *Sets) Bounds(key types.NamespacedName) *BoundsObject {
	return informer.Get[*BoundsObject](s.bounds, types.NamespacedName{Namespace: key.Namespace, Name: RefOf(key).GetName()})
}

// readEnforced reads whether bounds are enforced.
func (s *Sets) readEnforced(o *plan.Observation) {
	o.BoundsEnforced = true
	for _, cache := range []*informer.Informer{s.policies, s.bindings} {
		all := slices.DeleteFunc(informer.All[*unstructured.Unstructured](cache), func(u *unstructured.Unstructured) bool { return !DeniesRequests(u) })
		o.BoundsEnforced = o.BoundsEnforced && len(all) >= policiesOfBounds
		if err := ContractError(cache.Err()); err != nil && o.BoundsUnread == nil {
			if o.BoundsUnread = drivererr.ProblemOf(err); drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_FORBIDDEN {
				o.BoundsUnread.Message += ". For a driver of one namespace, config/namespaced/bounds.yaml grants it"
			}
		}
	}
}

// policiesOfBounds is how many admission policies config/disaggregated has: for the children, their scale, their deletion, and the bounds.
const policiesOfBounds = 4

// Key returns the key of the workload.
func (s *Set) Key() types.NamespacedName { return KeyFor(KindSet, s.Namespace, s.Name) }

func (b *BoundsObject) key() types.NamespacedName { return KeyFor(KindSet, b.Namespace, b.Name) }

// stripSet is the transform.
func stripSet(u *unstructured.Unstructured) (*Set, error) {
	var ds disaggregated.DisaggregatedSet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &ds); err != nil {
		return nil, fmt.Errorf("decode DisaggregatedSet %s/%s: %w", u.GetNamespace(), u.GetName(), err)
	}
	// The Go types are those of LWS v0.9.0, which lack slices and scaling.
	slicesOf, found, err := unstructured.NestedInt64(u.Object, "spec", "slices")
	if !found || err != nil { // from v0.10.0 on, its default is 1
		slicesOf = 1
	}
	raw, _, _ := unstructured.NestedSlice(u.Object, "spec", "roles")
	set := &Set{ObjectMeta: ds.ObjectMeta, Slices: int(slicesOf), Sliced: found, Revision: disaggregatedutils.ComputeRevision(ds.Spec.Roles)}
	for i, role := range ds.Spec.Roles {
		next := plan.Role{
			Name: role.Name, Replicas: max(int(ptr.Deref(role.Spec.Replicas, 1)), 0), Size: int(ptr.Deref(role.Spec.LeaderWorkerTemplate.Size, 1)),
		}
		next.MaxUnavailable, next.MaxSurge = plan.PaceOf(role.Spec, next.Replicas)
		if fields, ok := raw[i].(map[string]any); ok {
			mode, _, _ := unstructured.NestedString(fields, "scaling", "mode")
			next.External = mode == "External"
		}
		set.Roles, set.Specs = append(set.Roles, next), append(set.Specs, role)
	}
	view := &lws.LeaderWorkerSet{TypeMeta: metav1.TypeMeta{APIVersion: disaggregated.GroupVersion.String(), Kind: KindSet}, ObjectMeta: ds.ObjectMeta}
	if len(ds.Spec.Roles) > 0 {
		view.Spec = ds.Spec.Roles[0].Spec
	}
	// LWS reports no observed generation of a set. readSet concludes from the children what it has observed.
	view.Status.ObservedGeneration = ds.Generation
	set.ManagedFields, set.View = nil, StripWorkload(view)
	return set, nil
}

// replicaBounds is a ReplicaBounds.
type replicaBounds struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec boundsSpec `json:"spec"`
}

// boundsSpec is read as a [plan.Bounds] of the set's children.
type boundsSpec struct {
	Set         string `json:"set"`
	plan.Bounds `json:",inline"`
}

// BoundsFor returns the object that bounds the children of a set. Policy is the traffic policy of the release that routes their requests.
func BoundsFor(set *Set, b plan.Bounds, policy string) (*unstructured.Unstructured, error) {
	object := replicaBounds{
		TypeMeta: metav1.TypeMeta{APIVersion: BoundsResource.GroupVersion().String(), Kind: BoundsKind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: set.Namespace, Name: set.Name, Labels: map[string]string{record.RoleLabel: "bounds", record.StableLabel: set.Name},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, disaggregated.GroupVersion.WithKind(KindSet))},
		},
		Spec: boundsSpec{Set: set.Name, Bounds: b},
	}
	if b.Routes != "" {
		object.Finalizers, object.Annotations = []string{record.Finalizer}, map[string]string{record.TrafficAnnotation: policy}
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&object)
	if err != nil {
		return nil, fmt.Errorf("encode bounds of %s: %w", set.Key(), err)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

func stripBounds(u *unstructured.Unstructured) *BoundsObject {
	b := &BoundsObject{ObjectMeta: metav1.ObjectMeta{
		Namespace: u.GetNamespace(), Name: u.GetName(), UID: u.GetUID(), ResourceVersion: u.GetResourceVersion(), OwnerReferences: u.GetOwnerReferences(),
		DeletionTimestamp: u.GetDeletionTimestamp(), Finalizers: u.GetFinalizers(), Annotations: u.GetAnnotations(),
	}}
	if last := traffic.LastWriter(u.GetManagedFields(), `"f:spec"`); last != nil {
		b.ChangedBy = last.Manager
	}
	var object replicaBounds
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err != nil {
		b.Problem = err.Error()
		return b
	}
	b.Bounds = object.Spec.Bounds
	return b
}

// DeniesRequests reports whether an admission policy or a binding denies requests in every namespace: an edited one may only warn or audit, or match
// fewer objects.
func DeniesRequests(u *unstructured.Unstructured) bool {
	ofPolicy, _, _ := unstructured.NestedMap(u.Object, "spec", "matchConstraints")
	ofBinding, _, _ := unstructured.NestedMap(u.Object, "spec", "matchResources")
	narrowed := matchesLess(ofPolicy, "namespaceSelector", "excludeResourceRules") ||
		matchesLess(ofBinding, "namespaceSelector", "objectSelector", "resourceRules", "excludeResourceRules")
	failure, _, _ := unstructured.NestedString(u.Object, "spec", "failurePolicy")
	actions, binds, _ := unstructured.NestedStringSlice(u.Object, "spec", "validationActions")
	return !narrowed && failure != string(admissionv1.Ignore) && (!binds || slices.Contains(actions, string(admissionv1.Deny)))
}

// matchesLess reports whether one of these fields of a match leaves something out.
func matchesLess(match map[string]any, fields ...string) bool {
	return slices.ContainsFunc(fields, func(field string) bool {
		selector, _ := match[field].(map[string]any) // the API server defaults it to an empty one
		rules, _ := match[field].([]any)
		return len(selector)+len(rules) > 0
	})
}

// setIndex finds the children of DisaggregatedSets.
const setIndex = "set"

// setOf returns the key of the DisaggregatedSet that w is a child of; ok is false if it is none.
func setOf(w *lws.LeaderWorkerSet) (key types.NamespacedName, ok bool) {
	name := controllerOf(w, disaggregated.GroupVersion.Group, KindSet)
	return KeyFor(KindSet, w.Namespace, name), name != "" && w.Labels[disaggregated.SetNameLabelKey] == name
}

// namesakeIndex finds LeaderWorkerSets by the DisaggregatedSets that they seem to be children of, by their names.
const namesakeIndex = "namesake"

// namesakeSets returns the DisaggregatedSets that would name a child like w, which is none of theirs: <set>-<revision>-<role>, or
// <set>-<slice>-<revision>-<role> from LWS v0.10.0 on.
func namesakeSets(w *lws.LeaderWorkerSet) (keys []types.NamespacedName) {
	// The policy protects the label, but not the owner.
	own := KeyFor(KindSet, w.Namespace, w.Labels[disaggregated.SetNameLabelKey])
	for i := 1; i+10 < len(w.Name); i++ {
		if w.Name[i] != '-' || !revisionInName.MatchString(w.Name[i:i+10]) {
			continue
		}
		set := w.Name[:i]
		for _, name := range slices.Compact([]string{set, sliceInName.ReplaceAllString(set, "")}) {
			if key := KeyFor(KindSet, w.Namespace, name); key != own {
				keys = append(keys, key)
			}
		}
	}
	return keys
}

var (
	revisionInName = regexp.MustCompile("^-[0-9a-f]{8}-$")
	sliceInName    = regexp.MustCompile("-[0-9]+$")
)

// maxNamesakes is how many names bounds can leave out.
const maxNamesakes = 100

// namesakes returns the names of LeaderWorkerSets that the policy of scales would take for children of a set, sorted.
func (o *Observer) namesakes(set *Set) (names []string) {
	for _, w := range informer.List[*lws.LeaderWorkerSet](o.Caches.Workloads, namesakeIndex, set.Key().String()) {
		names = append(names, w.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), maxNamesakes)]
}

// Workload returns the user's workload of a key, a DisaggregatedSet as its view, nil if it does not exist.
func (o *Observer) Workload(key types.NamespacedName) *lws.LeaderWorkerSet {
	if set := o.Disaggregated.Get(key); set != nil {
		return set.View
	}
	return o.Caches.Workload(key)
}

// Held returns the keys of the user's workloads that have a record, sorted.
func (o *Observer) Held() []types.NamespacedName {
	var keys []types.NamespacedName
	for _, set := range informer.All[*Set](o.Disaggregated.sets) {
		if UnderHold(set.View) {
			keys = append(keys, set.Key())
		}
	}
	for _, w := range informer.All[*lws.LeaderWorkerSet](o.Caches.Workloads) {
		if UnderHold(w) {
			keys = append(keys, KeyOf(w))
		}
	}
	slices.SortFunc(keys, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return keys
}

// UnderHold reports whether w, which is nil if it does not exist, is a user's workload that has a record.
func UnderHold(w *lws.LeaderWorkerSet) bool {
	if w == nil {
		return false
	}
	_, recorded := w.Annotations[record.RecordAnnotation]
	_, added := AddedTo(w)
	return recorded && !added
}

// readBoundsLeft reads the bounds of a set that was deleted: those that say how its requests are routed, and those that it left without its
// children. Garbage collection deletes any other.
func (o *Observer) readBoundsLeft(s *Snapshot) {
	if object := o.Disaggregated.Bounds(s.Key); IsSet(s.Key) && object != nil {
		s.BoundsObject, s.Stable.HasFinalizer, s.Stable.Deleting = object, hasFinalizer(object), true
		s.BoundsLeft = object.DeletionTimestamp == nil && metav1.GetControllerOfNoCopy(object) == nil
	}
}

// readSet reads roles, children and bounds of a DisaggregatedSet.
func (o *Observer) readSet(s *Snapshot, set *Set) error {
	s.Set, s.Slices = set, set.Slices
	o.Disaggregated.readEnforced(&s.Observation)
	s.Stable = plan.Workload{
		Name: set.Name, Size: 1, Deleting: set.DeletionTimestamp != nil, DeletingSince: ptr.Deref(set.DeletionTimestamp, metav1.Time{}).Time,
		Orphans: isOrphaning(set.View), ChangedBy: changedBy(set.View),
	}
	s.Children, s.DeletedChildren, s.Namesakes = o.children(s, set), o.deletedChildren(s), o.namesakes(set)
	s.Stable.Recorded = recordedRoles(s.Children, set)
	s.Stable.Revision, s.Stable.Observed = set.Revision, slices.Contains(s.Stable.Recorded, set.Revision)
	o.readHistory(s)
	switch object := o.Disaggregated.Bounds(s.Key); {
	case object == nil, object.DeletionTimestamp != nil && !hasFinalizer(object):
	case object.DeletionTimestamp == nil && object.Problem != "":
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID,
			"%s %s/%s can't be read: %s. Delete it, and it is written again", BoundsKind, object.Namespace, object.Name, object.Problem)
	default:
		if object.DeletionTimestamp == nil && metav1.IsControlledBy(object, set) {
			s.Bounds = &object.Bounds
		} else { // of an earlier set with this name, or deleted by another client
			s.BoundsLeft = s.Record == nil
		}
		s.BoundsObject, s.BoundsBy, s.Stable.HasFinalizer = object, object.ChangedBy, s.Stable.Deleting && hasFinalizer(object)
	}
	o.readScalers(s, set)
	s.setEntryRole(plan.BegunEntryRole(s.Observation))
	return nil
}

// setEntryRole has requests enter by the leaders of a role, those of the first with "". It describes the set with that role's spec.
func (s *Snapshot) setEntryRole(role string) {
	// The cached view is shared; only this copy gets the spec of the role.
	view := *s.Set.View
	for _, r := range s.Set.Specs {
		if r.Name == role {
			view.Spec = r.Spec
		}
	}
	s.EntryRole, s.StableObject = role, &view
}

// Enter has requests enter as a release by this policy will have them: by the role whose leaders its Service selects. A release in flight
// keeps the role that it began with.
func (o *Observer) Enter(s *Snapshot, next *pb.ReleasePolicy) {
	if s.Set == nil || s.Record != nil && s.Record.Release != nil && s.Record.Release.Phase.Unfinished() || s.Bounds != nil && s.Bounds.Update != "" {
		return
	}
	near := preflight.Inventory{Workload: s.StableObject, Roles: s.RolesToBe(), Slices: s.Slices}
	near.Policy, _ = record.ParsePolicy(next)
	near.Services, _ = o.Nearby.Services(s.Key.Namespace) // the release is refused where they can't be read
	entry := ""
	if i := near.EntryRole(); i > 0 {
		entry = near.Roles[i].Name
	}
	s.setEntryRole(entry)
}

// children returns the children of a set.
func (o *Observer) children(s *Snapshot, set *Set) []plan.Child {
	// Children of a deleted set of this name stay until garbage collection deletes them.
	objects := slices.DeleteFunc(informer.List[*lws.LeaderWorkerSet](o.Caches.Workloads, setIndex, set.Key().String()), func(w *lws.LeaderWorkerSet) bool { return ownerUID(w) != set.UID })
	slices.SortFunc(objects, func(a, b *lws.LeaderWorkerSet) int { return strings.Compare(a.Name, b.Name) })
	all := make([]plan.Child, 0, len(objects))
	for _, w := range objects {
		labels, view := childLabelsOf(w.Labels), o.workload(s, w)
		slice := labels.sliceIndex()
		child := plan.Child{
			Name: w.Name, Role: labels.role, Revision: labels.revision, Slice: slice,
			Replicas: view.Replicas, Unobserved: !view.Observed, Deleting: view.Deleting, Groups: view.Groups, Legacy: labels.slice == "",
		}
		if view.ScaledBy != view.ChangedBy {
			child.ScaledBy = view.ScaledBy
		}
		all = append(all, child)
		s.AddedObjects[w.Name] = w
		if slice == 0 {
			s.AddedObjects[set.Name+"-"+child.Revision] = w
		}
	}
	return all
}

// deletedChildren returns the children of a set that no longer exist, and whose pods do, by name.
func (o *Observer) deletedChildren(s *Snapshot) (all []plan.Child) {
	for name, labels := range o.Caches.Groups.childrenOf(s.Key) {
		if o.Caches.Workload(name) != nil {
			continue
		}
		all = append(all, plan.Child{
			Name: name.Name, Role: labels.role, Revision: labels.revision, Slice: labels.sliceIndex(), Deleting: true,
			Groups: o.Caches.Groups.groupsOf(name, 0, 1, nil, s.Now, 0),
		})
	}
	slices.SortFunc(all, func(a, b plan.Child) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// recordedRoles returns the revisions for which LWS has created a child of every role, sorted.
func recordedRoles(children []plan.Child, set *Set) []string {
	roles := map[string]map[string]bool{}
	for _, c := range children {
		if roles[c.Revision] == nil {
			roles[c.Revision] = map[string]bool{}
		}
		roles[c.Revision][c.Role] = true
	}
	// LWS creates the children of a revision one by one, so some roles may be missing for a moment.
	maps.DeleteFunc(roles, func(_ string, has map[string]bool) bool {
		return slices.ContainsFunc(set.Roles, func(r plan.Role) bool { return !has[r.Name] })
	})
	return slices.Sorted(maps.Keys(roles))
}

// Spec returns the spec of a role, an empty one if the template has no such role.
func (s *Set) Spec(role string) (spec lws.LeaderWorkerSetSpec) {
	for _, r := range s.Specs {
		if r.Name == role {
			spec = r.Spec
		}
	}
	return spec
}

// Template returns the template in the spec.
func (s *Set) Template() (t record.Template) {
	for i, role := range s.Roles {
		t.Roles = append(t.Roles, record.Role{Name: role.Name, Spec: record.Template{LeaderWorkerTemplate: s.Specs[i].Spec.LeaderWorkerTemplate}})
	}
	return t
}

// RolesToBe returns the roles as LWS creates them for the template in the spec, with the names of the children that serve now.
func (s *Snapshot) RolesToBe() []preflight.Role {
	all := make([]preflight.Role, 0, len(s.Set.Specs))
	for _, role := range s.Set.Specs {
		var serves *lws.LeaderWorkerSet
		for _, c := range s.Children {
			if c.Role == role.Name && slices.Contains(s.StableRevisions(), c.Revision) {
				serves = s.AddedObjects[c.Name]
			}
		}
		next := preflight.NewRole(s.Set, role, serves)
		if serves != nil {
			next.App = preflight.AppOf(s.Set.Name, role.Name, serves, s.Set.Sliced)
		}
		all = append(all, next)
	}
	return all
}

// withoutLWSLabels returns the template of a child without the labels that LWS adds to it. With spec, it has the label app of the role there, which LWS
// replaces.
func withoutLWSLabels(child *lws.LeaderWorkerSet, spec *lws.LeaderWorkerTemplate) lws.LeaderWorkerTemplate {
	t := *child.Spec.LeaderWorkerTemplate.DeepCopy()
	pods := func(t *lws.LeaderWorkerTemplate) []*corev1.PodTemplateSpec {
		return []*corev1.PodTemplateSpec{cmp.Or(t.LeaderTemplate, &t.WorkerTemplate), &t.WorkerTemplate}
	}
	for i, pod := range pods(&t) {
		maps.DeleteFunc(pod.Labels, func(key, _ string) bool { return preflight.IsLWSLabel(key) })
		if spec == nil {
			continue
		}
		if app, ok := pods(spec)[i].Labels["app"]; ok {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, "app", app)
		}
	}
	return t
}

// ChildrenTemplate returns the template of a revision from the children of a set, to which LWS has copied it. The error has an ErrorReason.
func (s *Snapshot) ChildrenTemplate(revision string) (t record.Template, err error) {
	// What LWS has replaced is taken from the spec if the children alone do not have the template.
	for _, replaced := range []bool{false, true} {
		t.Roles = nil
		for _, role := range s.Roles {
			var spec *lws.LeaderWorkerTemplate
			if i := slices.IndexFunc(s.Set.Specs, func(r disaggregated.DisaggregatedRoleSpec) bool { return r.Name == role.Name }); replaced && i >= 0 {
				spec = &s.Set.Specs[i].Spec.LeaderWorkerTemplate
			}
			for _, c := range s.Children {
				if c.Revision == revision && c.Role == role.Name && c.Slice == 0 {
					t.Roles = append(t.Roles, record.Role{Name: role.Name, Spec: record.Template{LeaderWorkerTemplate: withoutLWSLabels(s.AddedObjects[c.Name], spec)}})
				}
			}
		}
		if rolesRevision(t) == revision {
			return t, nil
		}
	}
	// A child may have been edited, or lack a role that the set no longer has.
	return t, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
		"the children of %s do not have the template of revision %s as it was in the spec", Object(s.Key), revision)
}
