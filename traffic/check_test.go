// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestCheck(t *testing.T) {
	const gone, bad = pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE
	http := Key{KindHTTPRoute, "llm"}
	selector := func(labels map[string]string) func(*Setup, *World) {
		return func(_ *Setup, w *World) { w.Stable.Spec.Selector = labels }
	}
	for _, tt := range []struct {
		name, reason string
		change       func(*Setup, *World)
		want         pb.ErrorReason
		says         []string // object, field, labels and fix
	}{
		{"fine", "leaders by app label, of both sides", func(*Setup, *World) {}, 0, nil},
		{"by name", "leaders of the stable workload only", selector(map[string]string{
			lws.SetNameLabelKey: "vllm", lws.WorkerIndexLabelKey: "0"}), 0, nil},
		{"no Service", "named, and not there", func(_ *Setup, w *World) { w.Stable = nil }, gone,
			[]string{"Service vllm", "namespace default", "create it"}},
		{"workers too", "an app label alone", selector(map[string]string{"app": "vllm"}), bad,
			[]string{"Service vllm", "workers", `add leaderworkerset.sigs.k8s.io/worker-index: "0"`, "spec.selector"}},
		{"LWS's own Service", "the headless one that gives pods their names", selector(map[string]string{lws.SetNameLabelKey: "vllm"}), bad,
			[]string{"workers", `add leaderworkerset.sigs.k8s.io/worker-index: "0"`}},
		{"no workers", "groups of one: nothing else to catch", func(s *Setup, w *World) {
			stable := workload("vllm")
			stable.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](1)
			*s = NewSetup(stable, s.Canary, s.Policy, nil)
			w.Stable.Spec.Selector = map[string]string{"app": "vllm"}
		}, 0, nil},
		{"leader template", "leaders have labels of their own", func(s *Setup, w *World) {
			stable := workload("vllm")
			stable.Spec.LeaderWorkerTemplate.LeaderTemplate = &corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"role": "leader"}},
			}
			*s = NewSetup(stable, s.Canary, s.Policy, nil)
			w.Stable.Spec.Selector = map[string]string{"role": "leader"}
		}, 0, nil},
		{"nothing", "labels that no leader has", selector(map[string]string{"app": "llm", "tier": "x", lws.WorkerIndexLabelKey: "0"}), bad,
			[]string{"selects no leader", `app: "llm"`, `tier: "x"`, `app: "vllm"`, "no label tier"}},
		{"another workload", "the name label of others", selector(map[string]string{lws.SetNameLabelKey: "x"}), bad,
			[]string{"selects no leader", `leaderworkerset.sigs.k8s.io/name: "vllm"`}},
		{"no selector", "endpoints by hand", selector(nil), bad,
			[]string{"no spec.selector", `leaderworkerset.sigs.k8s.io/name: "vllm"`, `leaderworkerset.sigs.k8s.io/worker-index: "0"`}},
		{"ExternalName", "a name, no pods", func(_ *Setup, w *World) { w.Stable.Spec.Type = corev1.ServiceTypeExternalName }, bad,
			[]string{"ExternalName", "ClusterIP"}},
		{"policy changes a selected label", "the canary Service would select nothing", func(s *Setup, _ *World) {
			s.CanaryLeader = map[string]string{"app": "canary"}
		}, bad, []string{"policy.canary_leader_metadata", `app: "vllm"`, `app: "canary"`}},
		{"policy adds a label", "which nobody selects by", func(s *Setup, _ *World) { s.CanaryLeader = map[string]string{"track": "canary"} }, 0, nil},
		{"name taken", "a Service of others", func(_ *Setup, w *World) {
			w.Canary = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm-canary"}}
		}, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"Service default/vllm-canary", "policy.traffic.canary_service"}},
		{"no route", "named, and not there", func(_ *Setup, w *World) { delete(w.Routes, http) }, gone,
			[]string{"HTTPRoute llm", "namespace default"}},
		{"route of others", "no rule leads to the Service", func(s *Setup, w *World) {
			s.Policy.StableService = "sglang-2"
			w.Stable.Name = "sglang-2"
		}, bad, []string{"HTTPRoute llm", "backendRef to Service sglang-2"}},
		{"route knows the canary", "who wrote that ref can't be told", func(_ *Setup, w *World) {
			r := Route{http, w.Routes[http].DeepCopy()}
			list(r.rules()[2], "backendRefs")[0]["name"] = "vllm-canary"
			w.Routes[http] = r.Object
		}, bad, []string{"HTTPRoute llm", "vllm-canary", "remove that backendRef"}},
		{"weights too large", "a percentage of them is no whole number within the API's limit", func(_ *Setup, w *World) {
			r := Route{http, w.Routes[http].DeepCopy()}
			list(r.rules()[1], "backendRefs")[0]["weight"] = int64(20000)
			w.Routes[http] = r.Object
		}, bad, []string{"HTTPRoute llm", "other has weight 20000", "10000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t)
			tt.change(&c.setup, &c.world)
			err := Check(c.setup, c.world)
			if got := drivererr.Reason(err); got != tt.want || (err == nil) != (tt.says == nil) {
				t.Fatalf("%s: %v, want reason %v", tt.reason, err, tt.want)
			}
			for _, word := range tt.says {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%s: %q does not say %q", tt.reason, err, word)
				}
			}
		})
	}
}

func TestRouteVerified(t *testing.T) {
	route := readRoute(t, "httproute.yaml")
	first := func(key string, value any) func([]any) []any {
		return func(conditions []any) []any {
			conditions[0].(map[string]any)[key] = value
			return conditions
		}
	}
	for _, tt := range []struct {
		name, reason string
		change       func([]any) []any
		want         string
	}{
		{"taken", "all conditions, of this generation", func(c []any) []any { return c }, ""},
		{"newer", "an observed generation that the cache does not know yet", first("observedGeneration", int64(3)), ""},
		{"old", "the gateway knows the rules of before", first("observedGeneration", int64(1)), ReasonRouteNotObserved},
		{"refused", "no listener", first("status", "False"), ReasonRouteNotAccepted},
		{"unknown", "not decided yet", first("status", "Unknown"), ReasonRouteNotAccepted},
		{"refs", "a backend is missing", func(c []any) []any {
			c[1].(map[string]any)["status"] = "False"
			return c
		}, ReasonRefsNotResolved},
		{"half", "one condition is missing", func(c []any) []any { return c[:1] }, ReasonRouteNotObserved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ok, reason, message := RouteVerified(withStatus(t, route, tt.change))
			if reason != tt.want || ok != (tt.want == "") || (message == "") != ok {
				t.Errorf("%s: %t, %s: %s", tt.reason, ok, reason, message)
			}
		})
	}
}

// TestRouteParents: every parent that the spec names must have taken the route, and no other.
func TestRouteParents(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		spec, status string // parents, by name and section
		want         string
	}{
		{"both", "", "a b", "a b", ""},
		{"defaults", "group, kind and namespace may be spelled out", "a", "a.default", ""},
		{"one missing", "", "a b", "a", ReasonRouteNotObserved},
		{"none", "", "a", "", ReasonRouteNotObserved},
		{"former", "a parent that is no longer named", "a", "old a", ""},
		{"section", "another listener of the gateway", "a/https", "a/http", ReasonRouteNotObserved},
		{"elsewhere", "a gateway of the same name in another namespace", "a", "a.other", ReasonRouteNotObserved},
		{"orphan", "no parent at all", "", "", ReasonRouteNotAccepted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := readRoute(t, "httproute.yaml")
			spec, _ := r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.status)
			r = withStatus(t, r, func(c []any) []any { return c })
			spec, _ = r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.spec)
			if _, reason, message := RouteVerified(r); reason != tt.want {
				t.Errorf("%s: %s: %s", tt.reason, reason, message)
			}
		})
	}
}

func parentRefs(names string) []any {
	out := []any{}
	for _, name := range strings.Fields(names) {
		ref := object{}
		name, section, _ := strings.Cut(name, "/")
		name, namespace, _ := strings.Cut(name, ".")
		ref["name"] = name
		if section != "" {
			ref["sectionName"] = section
		}
		if namespace != "" {
			ref["namespace"], ref["group"], ref["kind"] = namespace, GatewayGroup, "Gateway"
		}
		out = append(out, ref)
	}
	return out
}
