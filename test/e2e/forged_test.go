// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"pgregory.net/rapid"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// tenants are the objects of other tenants, beside the workloads victim (in a release) and idle (not adopted). idle-app selects
// by a label, and shared selects the leaders of every workload.
const tenants = `
apiVersion: v1
kind: Service
metadata: {name: idle-app}
spec:
  selector: {app: idle, leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: idle-b}
spec:
  selector: {app: idle-b}
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: idle-epp}
spec:
  selector: {app: idle-epp}
  ports: [{name: grpc, port: 9002}]
---
apiVersion: v1
kind: Service
metadata: {name: shared}
spec:
  selector: {leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: idle}
spec:
  parentRefs: [{name: gateway}]
  rules:
  - backendRefs: [{name: idle-app, port: 80, weight: 80}, {name: idle-b, port: 80, weight: 20}]
  - matches: [{path: {value: /dangling}}]
    backendRefs: [{name: dangling, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: victim}
spec:
  parentRefs: [{name: gateway}]
  rules:
  - backendRefs: [{name: victim-http, port: 80}, {name: shared, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: pooled}
spec:
  parentRefs: [{name: gateway}]
  rules:
  - backendRefs: [{group: inference.networking.k8s.io, kind: InferencePool, name: idle-pool}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: idle-pool}
spec:
  selector: {matchLabels: {app: idle}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: idle-b, port: {number: 9002}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: ghost}
spec:
  scaleTargetRef: {apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: ghost}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 100Mi}}}]
`

// kinds are the kinds of objects that a driver may write, except for pods.
var kinds = []schema.GroupVersionResource{
	{Version: "v1", Resource: "services"},
	{Group: "gateway.networking.k8s.io", Version: "v1", Resource: "httproutes"},
	{Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "ingresses"},
	{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
	{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"},
	{Group: "apps", Version: "v1", Resource: "controllerrevisions"},
}

// forgery is a well-formed record of a release that no driver began, and the label with which its workload poses as another.
type forgery struct {
	Name, Alias string
	Phase       string
	Policy      *pb.ReleasePolicy
	Weight      int
	Successor   string
	SplitEnded  bool
	Target      string
}

func (f forgery) String() string {
	raw, _ := protojson.Marshal(f.Policy)
	return fmt.Sprintf("%s: phase %s, weight %d, splitEnded %t, successor %q, alias %q, target %q, policy %s", f.Name, f.Phase, f.Weight, f.SplitEnded, f.Successor, f.Alias, f.Target, raw)
}

// stable and canary as in record.Release.
func (f forgery) record(w *lws.LeaderWorkerSet, id, stable, update string) string {
	policy, _ := protojson.Marshal(f.Policy)
	now := time.Now().UTC()
	release := map[string]any{
		"id": id, "policy": json.RawMessage(policy), "stableRevision": stable, "updateRevision": update, "phase": f.Phase,
		"startedAt": now, "phaseAt": now, "splitEnded": f.SplitEnded, "replicas": 2, "groups": 2, "successor": f.Successor,
		"traffic": map[string]any{"weight": f.Weight},
	}
	if f.Target != "" {
		release["target"] = map[string]any{"groups": f.Target, "at": now}
	}
	return asJSON(map[string]any{
		"version": 1, "uid": w.UID, "saved": map[string]any{"partition": 0, "maxUnavailable": 1, "maxSurge": 0},
		"workload": f.Alias, "predecessor": f.Successor, "release": release,
	})
}

func styled(style pb.Style, t *pb.TrafficPolicy) *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: style, Batches: []string{"50%", "100%"}, Traffic: t}
}

// attacks are the forged records of the security review, and others with a known effect if they are trusted.
var attacks = []forgery{
	{Name: "another team's backendRefs become the workload's", Phase: "CleaningUp", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "evil-http", CanaryService: "idle-app", HttpRoutes: []string{"idle"}})},
	{Name: "dangling backendRefs become the workload's", Phase: "CleaningUp", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "evil-http", CanaryService: "dangling", HttpRoutes: []string{"idle"}})},
	{Name: "a Service for dangling backendRefs", Phase: "Progressing", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "evil-http", CanaryService: "dangling", HttpRoutes: []string{"idle"}})},
	{Name: "another team's Service is isolated", Phase: "Progressing", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "idle-app", HttpRoutes: []string{"idle"}})},
	{Name: "a Service of several workloads is isolated", Phase: "Progressing", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "shared", HttpRoutes: []string{"victim"}})},
	{Name: "another release's isolation is removed", Phase: "CleaningUp", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "victim-app", CanaryService: "evil-canary", Ingresses: []string{"victim"}})},
	{Name: "another team's pool is isolated", Phase: "Progressing", Policy: styled(pb.Style_STYLE_CANARY,
		&pb.TrafficPolicy{StableService: "evil-http", HttpRoutes: []string{"pooled"}, InferencePool: &pb.InferencePoolPolicy{Name: "idle-pool", CanaryEndpointPicker: "idle-epp"}})},
	{Name: "another release's autoscaler is restored", Phase: "CleaningUp", Successor: "victim", Policy: handover(policy("100%"), 0)},
	{Name: "an autoscaler is pointed at the workload", Phase: "HandingOver", Successor: "ghost", Policy: handover(policy("100%"), 0)},
	{Name: "handed over to another workload", Phase: "HandingOver", Successor: "victim", Alias: "victim", Policy: handover(policy("100%"), 0)},
}

// anyForgery generates records whose names are those of all tenants.
var anyForgery = rapid.Custom(func(t *rapid.T) forgery {
	one := func(label string, from ...string) string { return rapid.SampledFrom(from).Draw(t, label) }
	some := func(label string, from ...string) []string {
		return slices.DeleteFunc(from, func(name string) bool { return !rapid.Bool().Draw(t, label+name) })
	}
	p := styled(rapid.SampledFrom([]pb.Style{pb.Style_STYLE_CANARY, pb.Style_STYLE_BLUE_GREEN, pb.Style_STYLE_PARTITION}).Draw(t, "style"), &pb.TrafficPolicy{
		StableService: one("stable", "evil-http", "idle-app", "shared", "victim-http", "victim-app", "victim-app-canary", "missing"),
		CanaryService: one("canary", "", "idle-app", "idle-b", "victim-app", "victim-app-canary", "dangling", "evil-canary"),
		HttpRoutes:    some("route", "idle", "victim"), Ingresses: some("ingress", "idle", "victim", "evil"),
	})
	if p.Traffic.CanaryService == p.Traffic.StableService {
		p.Traffic.CanaryService = ""
	}
	if rapid.Bool().Draw(t, "pool") {
		p.Traffic.HttpRoutes, p.Traffic.InferencePool = append(p.Traffic.HttpRoutes, "pooled"), &pb.InferencePoolPolicy{Name: "idle-pool", CanaryEndpointPicker: "idle-epp"}
	}
	if len(p.Traffic.HttpRoutes)+len(p.Traffic.Ingresses) == 0 {
		p.Traffic.HttpRoutes = []string{"idle"}
	}
	f := forgery{
		Name: "generated", Policy: p, Weight: rapid.SampledFrom([]int{0, 50, 100}).Draw(t, "weight"), SplitEnded: rapid.Bool().Draw(t, "splitEnded"),
		Phase:     one("phase", "Progressing", "Promoting", "Standby", "HandingOver", "Promoted", "RollingBack", "CleaningUp", "Nothing"),
		Successor: one("successor", "", "victim", "idle", "ghost"), Alias: one("alias", "", "victim", "idle"), Target: one("target", "", "50%", "100%"),
	}
	if f.Phase == "HandingOver" {
		f.Successor = one("of", "victim", "idle", "ghost")
	}
	if p.Style == pb.Style_STYLE_BLUE_GREEN {
		p.Batches = []string{"100%"}
		if rapid.Bool().Draw(t, "adopts") {
			p.BlueGreen = &pb.BlueGreenPolicy{Promotion: pb.BluePromotion_BLUE_PROMOTION_ADOPT}
		}
	}
	return f
})

// An editor of one LeaderWorkerSet can write any record on it. Nothing but the workload's own objects may change.
//
// Proves: Safety rule 9: edited and forged records change no object of another tenant.
func TestForgedRecords(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.observer.Waive()
	e.observer.waive(ruleOneCanary, ruleCanarySize, ruleStableUntouched, ruleAvailable, ruleSurge, ruleCanaryStays, ruleIntent, ruleHold,
		ruleBatch, ruleDown, ruleDouble, ruleDelay) // the forged records ask for anything
	suite.Apply(t, e.cluster, e.namespace, tenants)
	e.deploy(model("idle", 1, 1, templateLabel("app", "idle"))).expose()
	e.victim()
	evil := e.adopt(model("evil", 2, 1))
	evil.expose()
	stable := evil.otherRevision("")
	evil.edit(image("v2"))
	update := evil.otherRevision(stable)

	own := func(name string) bool { // the workload's objects; its canary's name derives from the alias
		return strings.HasPrefix(name, "evil") || strings.Contains(name, "-"+update[:6]) || strings.Contains(name, "-"+stable[:6])
	}
	before, from := e.tenantObjects(own), audit.Mark(t, e.kube, e.namespace)
	forgeries := slices.Clone(attacks)
	for seed := range 40 {
		forgeries = append(forgeries, anyForgery.Example(seed))
	}
	invalid := 0
	for i, f := range forgeries {
		id := fmt.Sprintf("forged-%d", i)
		patch := map[string]any{"labels": map[string]any{knownLabel: nil}, "annotations": map[string]any{recordAnnotation: f.record(evil.get(), id, stable, update)}}
		if f.Alias != "" {
			patch["labels"] = map[string]any{knownLabel: f.Alias}
		}
		evil.mergePatch(asJSON(map[string]any{"metadata": patch}))
		last := evil.settled(id)
		if last.GetReason() == "RecordInvalid" {
			if invalid++; last.GetState() != pb.State_STATE_FAILED || !strings.Contains(last.GetMessage(), recordAnnotation) {
				t.Errorf("%s: %s", f, show(last))
			}
		} else if i < len(attacks) && f.Phase == "Progressing" {
			t.Errorf("%s: not refused: %s", f, show(last))
		}
		diff := differences(before, e.tenantObjects(own))
		require.Empty(t, diff, "%s: %s\n%s", f, diff, show(last))
		for _, write := range e.writesToTenants(from, own) {
			t.Errorf("%s: %s", f, write)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d of %d forged records are refused with RecordInvalid, the others have no effect on other tenants", invalid, len(forgeries))
	assert.GreaterOrEqual(t, invalid, len(attacks)/2, "only %d records are refused", invalid)
	c := e.existing("victim").context()
	assert.True(t, c.GetState() == pb.State_STATE_READY && c.GetTrafficWeight() == 50, "the release of another workload: %s", show(c))
}

// victim is a workload in mid-release, with half of its requests at the canary. Its Service selects by a label of its own.
func (e *env) victim() {
	e.t.Helper()
	suite.Apply(e.t, e.cluster, e.namespace, `
apiVersion: v1
kind: Service
metadata: {name: victim-app}
spec:
  selector: {app: victim, leaderworkerset.sigs.k8s.io/worker-index: "0"}
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: victim-http}
spec:
  selector: {app: victim}
  ports: [{name: http, port: 80}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: victim}
spec:
  ingressClassName: nginx
  defaultBackend: {service: {name: victim-app, port: {name: http}}}
`)
	w := e.adopt(model("victim", 2, 1, templateLabel("app", "victim")))
	w.autoscale(2, 4, nil)
	w.edit(image("v2"))
	p := policy("50%", "100%")
	p.Traffic = &pb.TrafficPolicy{StableService: "victim-app", Ingresses: []string{"victim"}}
	w.initialize("r1", p)
	w.upgrade("r1", 0)
	w.setWeight(50)
}

// templateLabel sets a label on the pods of every group.
func templateLabel(key, value string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range templates(w) {
			metav1.SetMetaDataLabel(&t.ObjectMeta, key, value)
		}
	}
}

// otherRevision waits until LWS has recorded a second revision, and returns it.
func (w *workload) otherRevision(than string) (revision string) {
	w.t.Helper()
	w.eventually("LWS records the new template", func(ctx context.Context) error {
		list, err := w.kube.AppsV1().ControllerRevisions(w.namespace).List(ctx, metav1.ListOptions{LabelSelector: lws.SetNameLabelKey + "=" + w.name})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if revision = list.Items[i].Labels[lws.RevisionKey]; revision != "" && revision != than {
				return nil
			}
		}
		return errNotYet
	})
	return revision
}

// settled waits until the driver has observed a release, and reports the same three times in a row.
func (w *workload) settled(id string) (last *pb.BatchContext) {
	w.t.Helper()
	same := 0
	w.eventually("the driver has settled on "+id, func(ctx context.Context) error {
		now, err := w.tryContext(ctx)
		if err != nil {
			return err
		}
		if same++; last == nil || now.GetReason() != last.GetReason() || now.GetMessage() != last.GetMessage() {
			same = 0
		}
		if last = proto.CloneOf(now); same < 3 || now.GetReleaseId() != id {
			return errNotYet
		}
		return nil
	})
	return last
}

// tenantObjects returns the objects in the namespace that don't belong to workload evil, without their status.
func (e *env) tenantObjects(own func(name string) bool) map[string]string {
	e.t.Helper()
	owner := string(e.existing("evil").get().UID)
	all := map[string]string{}
	for _, kind := range kinds {
		list := suite.List(e.t, e.dynamic.Resource(kind).Namespace(e.namespace), metav1.ListOptions{})
		for i := range list.Items {
			o := &list.Items[i]
			if o.GetName() == "evil" || o.GetName() == "evil-http" || slices.ContainsFunc(o.GetOwnerReferences(), func(r metav1.OwnerReference) bool {
				return string(r.UID) == owner || own(r.Name)
			}) {
				continue
			}
			all[kind.Resource+"/"+o.GetName()] = asJSON([]any{o.GetUID(), o.GetDeletionTimestamp(), o.GetLabels(), o.GetAnnotations(), o.GetFinalizers(), o.GetOwnerReferences(), o.Object["spec"], o.Object["data"]})
		}
	}
	return all
}

// differences describes the first difference.
func differences(before, after map[string]string) string {
	for _, name := range slices.Sorted(maps.Keys(after)) {
		if before[name] == "" {
			return name + " was created: " + after[name]
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if before[name] != after[name] {
			return fmt.Sprintf("%s was changed\nfrom %s\nto   %s", name, before[name], after[name])
		}
	}
	return ""
}

// writesToTenants returns the driver's requests since a mark that would have changed an object of another tenant, from the API
// server's audit log: also those that were refused, or reverted since.
func (e *env) writesToTenants(from string, own func(name string) bool) []string {
	e.t.Helper()
	var found []string
	for _, r := range audit.Between(e.t, e.cluster.AuditLog(), from, audit.Mark(e.t, e.kube, e.namespace), e.namespace) {
		o := r.ObjectRef
		if r.IsWrite() && r.User.Username == driver.User && o.Namespace == e.namespace && o.Resource != "events" && o.Name != "" && !own(o.Name) {
			found = append(found, r.Verb+" "+o.Resource+"/"+o.Name)
		}
	}
	return found
}
