// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package observer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Kinds that the rule reads.
var (
	argoRollouts  = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "rollouts"}
	batchReleases = schema.GroupVersionResource{Group: "rollouts.kruise.io", Version: "v1beta1", Resource: "batchreleases"}
	targets       = schema.GroupVersionResource{Group: "lockstep.dev", Version: "v1alpha1", Resource: "rollouttargets"}

	kinds = []schema.GroupVersionResource{
		lws.SchemeGroupVersion.WithResource("leaderworkersets"), disaggregated.GroupVersion.WithResource("disaggregatedsets"), corev1.SchemeGroupVersion.WithResource("pods"),
		appsv1.SchemeGroupVersion.WithResource("controllerrevisions"), appsv1.SchemeGroupVersion.WithResource("statefulsets"), argoRollouts, batchReleases, targets,
	}
	// hosts are the prefixes of owners whose releases follow from objects of a kind.
	hosts = map[schema.GroupVersionResource]string{argoRollouts: "argo-rollouts/", targets: "kruise-rollouts/", batchReleases: "kruise-batchrelease/"}
)

// ledger is what was asked for, and what runs.
type ledger struct {
	hosts []string
	// workloads has each workload by the name of its object, and of each object that a release added.
	workloads map[string]*workload
	// evidence has what asks for a revision, by kind and name.
	evidence map[string]*evidence
	// hashes has the revision that each pod template hash of an Argo Rollout stands for, by the Rollout's UID.
	hashes map[types.UID]map[string]string
	// targets has the workload of each RolloutTarget, and revisions that of each ControllerRevision of leaders.
	targets, revisions map[string]string
	// children has the set and the revision of each child of a DisaggregatedSet.
	children   map[string]child
	violations []string
}

type child struct{ set, revision string }

// workload is a LeaderWorkerSet with what its releases add, or a DisaggregatedSet with its children.
type workload struct {
	// held tells of each object that is the workload, and was not added by a release, whether the driver holds it.
	held map[string]bool
	// pods has the revision of each pod, and added that of each object that a release added.
	pods  map[types.UID]string
	added map[string]string
	// creating has the revision of each StatefulSet of a child that may yet create pods: its controller has not seen the end of a release.
	creating map[string]string
	// asked has what first asked for a revision, and leaving the same by the name of each pod whose deletion began then: the controllers create
	// its successor by what they saw before.
	asked   map[string]string
	leaving map[string]map[string]string
	// release is the last release, begun at a version.
	release *release
	begun   uint64
}

// release is the part of the record that the rule reads.
type release struct {
	ID, Owner, StableRevision, UpdateRevision string
	Phase                                     record.Phase
}

// evidence is what asks for a revision of a workload.
type evidence struct {
	workload, revision string
	// key changes when the same object asks anew, which it did since a version.
	key   string
	since uint64
	// spent is set once the release that followed was rolled back.
	spent bool
}

// judge returns the violations of the rule. The hosts are the prefixes of owners that have evidence of their own.
func judge(hosts []string, events []Event) []string {
	l := &ledger{
		hosts: hosts, workloads: map[string]*workload{}, evidence: map[string]*evidence{}, hashes: map[types.UID]map[string]string{},
		targets: map[string]string{}, revisions: map[string]string{}, children: map[string]child{},
	}
	for _, e := range events {
		l.step(e)
	}
	return l.violations
}

func (l *ledger) step(e Event) {
	name, key := e.Object.GetName(), e.Object.GetKind()+" "+e.Object.GetName()
	switch e.Object.GroupVersionKind().GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		l.pod(e)
	case schema.GroupKind{Group: lws.GroupVersion.Group, Kind: "LeaderWorkerSet"}:
		if set, revision := ofSet(e.Object); set != "" {
			l.children[name] = child{set, revision}
		} else {
			l.set(name, e)
		}
	case schema.GroupKind{Group: disaggregated.GroupVersion.Group, Kind: plugin.KindDisaggregatedSet}:
		l.set(plugin.NameOf(&pb.WorkloadRef{Kind: plugin.KindDisaggregatedSet, Name: name}), e)
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ControllerRevision"}:
		_, revision := ofSet(e.Object)
		if revision = cmp.Or(revision, e.Object.GetLabels()[lws.RevisionKey]); revision != "" {
			l.revisions[name] = revision
		}
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		l.statefulSet(e)
	case schema.GroupKind{Group: targets.Group, Kind: "RolloutTarget"}:
		l.targets[name] = plugin.NameOf(&pb.WorkloadRef{
			Kind: text.Field(e.Object, "spec", "workloadRef", "kind"), Name: text.Field(e.Object, "spec", "workloadRef", "name"),
		})
	case schema.GroupKind{Group: argoRollouts.Group, Kind: "Rollout"}:
		if e.Deleted {
			delete(l.evidence, key)
			break
		}
		l.rollout(key, e)
	case schema.GroupKind{Group: batchReleases.Group, Kind: "BatchRelease"}:
		if e.Deleted {
			delete(l.evidence, key)
			break
		}
		l.batchRelease(key, e)
	}
	for _, w := range l.workloads {
		l.settle(w)
	}
}

// ofSet returns the DisaggregatedSet and its revision that an object belongs to, "" if it belongs to none.
func ofSet(o *unstructured.Unstructured) (set, revision string) {
	labels := o.GetLabels()
	if labels[disaggregated.SetNameLabelKey] == "" {
		return "", ""
	}
	ref := &pb.WorkloadRef{Kind: plugin.KindDisaggregatedSet, Name: labels[disaggregated.SetNameLabelKey]}
	return plugin.NameOf(ref), labels[disaggregated.RevisionLabelKey]
}

// of returns the workload that an object belongs to.
func (l *ledger) of(object string) *workload {
	w := l.workloads[object]
	if w == nil {
		w = newWorkload()
		l.workloads[object] = w
	}
	return w
}

func newWorkload() *workload {
	return &workload{
		held: map[string]bool{}, pods: map[types.UID]string{}, added: map[string]string{}, creating: map[string]string{}, asked: map[string]string{},
		leaving: map[string]map[string]string{},
	}
}

// statefulSet notes whether a StatefulSet of a child may yet create pods: those of workers do until the garbage collector has deleted them.
func (l *ledger) statefulSet(e Event) {
	of, ok := l.children[e.Object.GetLabels()[lws.SetNameLabelKey]]
	if !ok {
		return
	}
	replicas, _, _ := unstructured.NestedInt64(e.Object.Object, "spec", "replicas")
	exist, _, _ := unstructured.NestedInt64(e.Object.Object, "status", "replicas")
	observed, _, _ := unstructured.NestedInt64(e.Object.Object, "status", "observedGeneration")
	creating := l.of(of.set).creating
	if creating[e.Object.GetName()] = of.revision; e.Deleted || replicas+exist == 0 && observed == e.Object.GetGeneration() {
		delete(creating, e.Object.GetName())
	}
}

func (l *ledger) pod(e Event) {
	set, revision := ofSet(e.Object)
	if set == "" {
		set, revision = e.Object.GetLabels()[lws.SetNameLabelKey], e.Object.GetLabels()[lws.RevisionKey]
	}
	if set == "" || revision == "" {
		return
	}
	w := l.of(set)
	// A policy may add metadata to the pods of an added object, whose template then has another hash.
	revision = cmp.Or(w.added[set], revision)
	_, known := w.pods[e.Object.GetUID()]
	if known && w.leaving[e.Object.GetName()] == nil && (e.Deleted || e.Object.GetDeletionTimestamp() != nil) {
		w.leaving[e.Object.GetName()] = maps.Clone(w.asked)
	}
	switch {
	case e.Deleted:
		for _, w := range l.workloads { // the name of its set may be another workload's by now
			delete(w.pods, e.Object.GetUID())
		}
	case !known:
		w.pods[e.Object.GetUID()] = revision
		if !w.managed() || len(w.asked) == 0 {
			w.asked[revision] = "the user: it was not held"
		}
		asked := cmp.Or(w.asked[revision], w.leaving[e.Object.GetName()][revision])
		delete(w.leaving, e.Object.GetName())
		if asked == "" {
			l.violations = append(l.violations, fmt.Sprintf("pod %s appeared at %s (resource version %d) at revision %s, which nothing asked for. "+
				"Asked for: %v. Evidence: %s", e.Object.GetName(), e.Object.GetCreationTimestamp().UTC().Format(time.TimeOnly), e.Version, revision, w.asked, l.describe()))
			w.asked[revision] = "nothing, as reported" // once for all its pods
		}
	}
}

// managed reports whether the driver holds the workload.
func (w *workload) managed() bool { return slices.Contains(slices.Collect(maps.Values(w.held)), true) }

func (l *ledger) set(name string, e Event) {
	labels := e.Object.GetLabels()
	if stable := labels[record.StableLabel]; stable != "" && labels[record.RoleLabel] != "" {
		w := l.of(stable)
		l.workloads[name] = w
		if w.added[name] = labels[record.RevisionLabel]; e.Deleted {
			delete(w.added, name)
		}
		return
	}
	w := l.of(name)
	_, added := w.added[name]
	_, exists := w.held[name]
	if !added && !exists && w.managed() {
		// The workload was handed over to another object, and the user creates one under its old name: that is a workload of its own.
		w = newWorkload()
		l.workloads[name] = w
	}
	delete(w.added, name)
	before, raw := w.managed(), e.Object.GetAnnotations()[record.RecordAnnotation]
	if w.held[name] = raw != ""; e.Deleted {
		delete(w.held, name)
	}
	var content struct{ Release *release }
	if w.held[name] && json.Unmarshal([]byte(raw), &content) == nil {
		w.follow(l, content.Release, e.Version)
	}
	if !before && w.managed() {
		w.asked = map[string]string{}
		for _, revision := range w.pods {
			w.asked[revision] = "the user: it ran when the workload was adopted"
		}
	}
}

// follow notes a change of the release. Its rollback spends the evidence that it followed from.
func (w *workload) follow(l *ledger, now *release, version uint64) {
	was := w.release
	if w.release = now; now == nil {
		return
	}
	if was == nil || was.ID != now.ID || was.UpdateRevision != now.UpdateRevision {
		w.begun = version
	}
	if !rolledBack(now) || rolledBack(was) {
		return
	}
	for _, e := range l.evidence {
		if l.workloads[e.workload] == w && l.resolve(e) == now.UpdateRevision && e.since < w.begun {
			e.spent = true
		}
	}
}

func rolledBack(r *release) bool {
	return r != nil && (r.Phase == record.RollingBack || r.Phase == record.CleaningUp)
}

// rollout reads what Argo has observed: a current hash that is not the stable one, of a spec that it has observed. Argo marks an invalid spec
// as observed and keeps the hashes of an older one, so each hash stands for the revision with which it was first seen.
func (l *ledger) rollout(key string, e Event) {
	o := e.Object
	hash, stable := text.Field(o, "status", "currentPodHash"), text.Field(o, "status", "stableRS")
	if hash == "" || stable == "" || text.Field(o, "status", "observedGeneration") != strconv.FormatInt(o.GetGeneration(), 10) {
		return
	}
	config := pluginConfig(o)
	template, _, _ := unstructured.NestedString(o.Object, "spec", "template", "metadata", "annotations", "lockstep.dev/revision")
	template, _, _ = strings.Cut(template, ".") // behind the dot stands how often the Rollout was started with it
	revision := cmp.Or(template, o.GetAnnotations()["lockstep.dev/first-revision"])
	_, referenced := o.Object["spec"].(map[string]any)["workloadRef"]
	if referenced {
		revision = whateverIsBegun // a user starts it, for the template that its first step finds
	} else if revision != "" {
		known := l.hashes[o.GetUID()]
		if known == nil {
			known = map[string]string{}
			l.hashes[o.GetUID()] = known
		}
		if known[hash] == "" {
			known[hash] = revision
		}
		revision = known[hash]
	}
	aborted, _, _ := unstructured.NestedBool(o.Object, "status", "abort")
	asks := &evidence{workload: config.workload(), revision: revision, key: string(o.GetUID()) + hash, since: e.Version}
	was := l.evidence[key]
	switch same := was != nil && was.key == asks.key && was.revision == revision; {
	case aborted, revision == "", hash == stable && !same:
		delete(l.evidence, key)
	case !same:
		l.evidence[key] = asks
	}
}

// config is the part of the plugin's configuration that the rule reads.
type config struct {
	Workload json.RawMessage
}

// workload returns the name of NAME or {kind: KIND, name: NAME}.
func (c config) workload() string {
	var ref pb.WorkloadRef
	if json.Unmarshal(c.Workload, &ref.Name) != nil {
		_ = json.Unmarshal(c.Workload, &ref) // what is not readable asks for nothing
	}
	return plugin.NameOf(&ref)
}

func pluginConfig(o *unstructured.Unstructured) (c config) {
	plugin, _, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "strategy", "canary", "trafficRouting", "plugins", "lockstep/lws")
	if raw, err := json.Marshal(plugin); err == nil {
		_ = json.Unmarshal(raw, &c) // what is not readable asks for nothing
	}
	return c
}

// batchRelease reads what Kruise has observed: a batch of a revision, which is one of the leaders' StatefulSet. Of a workload without a
// RolloutTarget, `lockstep batchrelease` releases what is begun, as long as a partition asks for it.
func (l *ledger) batchRelease(key string, e Event) {
	o := e.Object
	revision, ref := text.Field(o, "status", "updateRevision"), &pb.WorkloadRef{
		Kind: text.Field(o, "spec", "workloadRef", "kind"), Name: text.Field(o, "spec", "workloadRef", "name"),
	}
	asks := evidence{workload: plugin.NameOf(ref), revision: whateverIsBegun, key: string(o.GetUID()) + revision, since: e.Version}
	if ref.GetKind() == "RolloutTarget" {
		if text.Field(o, "status", "phase") != "Progressing" || revision == "" {
			return
		}
		asks.workload, asks.revision = l.targets[ref.GetName()], revision
	} else if _, asked, _ := unstructured.NestedFieldNoCopy(o.Object, "spec", "releasePlan", "batchPartition"); !asked || o.GetDeletionTimestamp() != nil {
		delete(l.evidence, key)
		return
	}
	if was := l.evidence[key]; was == nil || was.key != asks.key {
		l.evidence[key] = &asks
	}
}

// whateverIsBegun is the revision of an evidence that names none: that of the release in flight.
const whateverIsBegun = "*"

// resolve returns the template revision that an evidence names.
func (l *ledger) resolve(e *evidence) string {
	if w := l.workloads[e.workload]; e.revision == whateverIsBegun && w != nil && w.release != nil {
		return w.release.UpdateRevision
	}
	return cmp.Or(l.revisions[e.revision], e.revision)
}

// settle notes what is asked for now, and withdraws what is over.
func (l *ledger) settle(w *workload) {
	asks := map[string]string{}
	for key, e := range l.evidence {
		if l.workloads[e.workload] == w && !e.spent {
			asks[l.resolve(e)] = key
		}
	}
	if r := w.release; r != nil && r.UpdateRevision != "" && r.Phase.Unfinished() && !rolledBack(r) &&
		!slices.ContainsFunc(l.hosts, func(host string) bool { return strings.HasPrefix(r.Owner, host) }) {
		asks[r.UpdateRevision] = "release " + r.ID + " of " + cmp.Or(r.Owner, "a client")
	}
	for revision, by := range asks {
		if w.asked[revision] == "" {
			w.asked[revision] = by
		}
	}
	if len(w.pods) == 0 {
		return // scaled to 0: what the groups ran last is what they run next
	}
	inUse := maps.Clone(asks)
	for _, revision := range slices.Concat(slices.Collect(maps.Values(w.pods)), slices.Collect(maps.Values(w.added)), slices.Collect(maps.Values(w.creating))) {
		inUse[revision] = "in use"
	}
	if r := w.release; r != nil && r.Phase.Unfinished() {
		inUse[r.StableRevision], inUse[r.UpdateRevision] = "in flight", "in flight"
	} else {
		clear(w.leaving)
	}
	maps.DeleteFunc(w.asked, func(revision, _ string) bool { return inUse[revision] == "" })
}

func (l *ledger) describe() string {
	all := make([]string, 0, len(l.evidence))
	for _, key := range slices.Sorted(maps.Keys(l.evidence)) {
		e := l.evidence[key]
		all = append(all, fmt.Sprintf("%s asks for revision %s of %s since %d, spent %t", key, l.resolve(e), e.workload, e.since, e.spent))
	}
	return cmp.Or(strings.Join(all, "; "), "none")
}
