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
	const notFound, bad = pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE
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
		{"valid", "leaders by app label, of both workloads", func(*Setup, *World) {}, 0, nil},
		{"by name", "leaders of the stable workload only", selector(map[string]string{
			lws.SetNameLabelKey: "vllm", lws.WorkerIndexLabelKey: "0"}), 0, nil},
		{"no Service", "named but missing", func(_ *Setup, w *World) { w.Stable = nil }, notFound,
			[]string{"Service vllm", "namespace default", "create it"}},
		{"workers too", "an app label alone", selector(map[string]string{"app": "vllm"}), bad,
			[]string{"Service vllm", "workers", `add leaderworkerset.sigs.k8s.io/worker-index: "0"`, "spec.selector"}},
		{"LWS's own Service", "the headless one for the pods' host names", selector(map[string]string{lws.SetNameLabelKey: "vllm"}), bad,
			[]string{"workers", `add leaderworkerset.sigs.k8s.io/worker-index: "0"`}},
		{"no workers", "groups of one have no workers to exclude", func(s *Setup, w *World) {
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
		{"no match", "labels that no leader has", selector(map[string]string{"app": "llm", "tier": "x", lws.WorkerIndexLabelKey: "0"}), bad,
			[]string{"selects no leader", `app: "llm"`, `tier: "x"`, `app: "vllm"`, "no label tier"}},
		{"another workload", "its name label", selector(map[string]string{lws.SetNameLabelKey: "x"}), bad,
			[]string{"selects no leader", `leaderworkerset.sigs.k8s.io/name: "vllm"`}},
		{"no selector", "manual endpoints", selector(nil), bad,
			[]string{"no spec.selector", `leaderworkerset.sigs.k8s.io/name: "vllm"`, `leaderworkerset.sigs.k8s.io/worker-index: "0"`}},
		{"ExternalName", "selects no pods", func(_ *Setup, w *World) { w.Stable.Spec.Type = corev1.ServiceTypeExternalName }, bad,
			[]string{"ExternalName", "ClusterIP"}},
		{"policy changes a selected label", "the canary Service would select nothing", func(s *Setup, _ *World) {
			s.CanaryLeader = map[string]string{"app": "canary"}
		}, bad, []string{"policy.canary_leader_metadata", `app: "vllm"`, `app: "canary"`}},
		{"policy adds a label", "which is not in the selector", func(s *Setup, _ *World) { s.CanaryLeader = map[string]string{"track": "canary"} }, 0, nil},
		{"name taken", "a foreign Service", func(_ *Setup, w *World) {
			w.Canary = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "vllm-canary"}}
		}, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, []string{"Service default/vllm-canary", "policy.traffic.canary_service"}},
		{"no route", "named but missing", func(_ *Setup, w *World) { delete(w.Routes, http) }, notFound,
			[]string{"HTTPRoute llm", "namespace default"}},
		{"route without the Service", "no rule leads to the Service", func(s *Setup, w *World) {
			s.Policy.StableService = "sglang-2"
			w.Stable.Name = "sglang-2"
		}, bad, []string{"HTTPRoute llm", "backendRef to Service sglang-2"}},
		{"route with the canary", "the origin of the ref is unknown", func(_ *Setup, w *World) {
			r := Route{http, w.Routes[http].DeepCopy()}
			list(r.rules()[2], "backendRefs")[0]["name"] = "vllm-canary"
			w.Routes[http] = r.Object
		}, bad, []string{"HTTPRoute llm", "vllm-canary", "remove the backendRef"}},
		{"weights too large", "a percentage would exceed the API's limit", func(_ *Setup, w *World) {
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

func TestUnverifiedRoute(t *testing.T) {
	route := readRoute(t, "httproute.yaml")
	first := func(key string, value any) func([]any) []any {
		return func(conditions []any) []any {
			conditions[0].(map[string]any)[key] = value
			return conditions
		}
	}
	partial := func(status string) func([]any) []any {
		return func(conditions []any) []any {
			return append(conditions, map[string]any{
				"type": "PartiallyInvalid", "status": status, "reason": "UnsupportedValue", "message": "Dropped Rule 1", "observedGeneration": int64(2),
			})
		}
	}
	for _, tt := range []struct {
		name, reason string
		change       func([]any) []any
		want         string
	}{
		{"accepted", "all conditions, of this generation", func(c []any) []any { return c }, ""},
		{"newer", "an observed generation newer than the cache", first("observedGeneration", int64(3)), ""},
		{"outdated", "the gateway observed an earlier generation", first("observedGeneration", int64(1)), ReasonRouteNotObserved},
		{"rejected", "no listener", first("status", "False"), ReasonRouteNotAccepted},
		{"unknown", "not evaluated yet", first("status", "Unknown"), ReasonRouteNotAccepted},
		{"refs", "a backend is missing", func(c []any) []any {
			c[1].(map[string]any)["status"] = "False"
			return c
		}, ReasonRefsNotResolved},
		{"dropped rule", "accepted without one of its rules, which may be that of a header route", partial("True"), ReasonRouteNotAccepted},
		{"valid", "no rule is invalid", partial("False"), ""},
		{"incomplete", "one condition is missing", func(c []any) []any { return c[:1] }, ReasonRouteNotObserved},
	} {
		t.Run(tt.name, func(t *testing.T) {
			reason, message := unverifiedRoute(withStatus(t, route, tt.change), true)
			// Of several controllers that report on a gateway the message names the one.
			if reason != tt.want || strings.Contains(message, "(example.com/gateway) ") != (tt.want != "") {
				t.Errorf("%s: %s: %s", tt.reason, reason, message)
			}
		})
	}
}

// TestRouteParents: every parent in the spec must have accepted the route; others are ignored.
func TestRouteParents(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		spec, status string // parents, by name and section
		want         string
	}{
		{"both", "", "a b", "a b", ""},
		{"defaults", "group, kind and namespace may be explicit", "a", "a.default", ""},
		{"one missing", "", "a b", "a", ReasonRouteNotObserved},
		{"none", "", "a", "", ReasonRouteNotObserved},
		{"former", "a parent that was removed from the spec", "a", "old a", ""},
		{"section", "another listener of the gateway", "a/https", "a/http", ReasonRouteNotObserved},
		{"other namespace", "a gateway with the same name", "a", "a.other", ReasonRouteNotObserved},
		{"orphan", "no parent at all", "", "", ReasonRouteNotAccepted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := readRoute(t, "httproute.yaml")
			spec, _ := r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.status)
			r = withStatus(t, r, func(c []any) []any { return c })
			spec, _ = r.Object.Object["spec"].(object)
			spec["parentRefs"] = parentRefs(tt.spec)
			if reason, message := unverifiedRoute(r, true); reason != tt.want {
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
