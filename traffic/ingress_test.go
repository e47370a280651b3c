// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func header(name, value string, regex bool) HeaderRoute {
	return HeaderRoute{Name: "beta", Matches: []HeaderMatch{{Name: name, Value: value, Regex: regex}}}
}

func cookie(name, value string) HeaderRoute {
	return HeaderRoute{Name: "cookie", Matches: []HeaderMatch{{Name: name, Value: value, Cookie: true}}}
}

func TestCanaryIngress(t *testing.T) {
	user, s := readIngress(t, "ingress.yaml"), setupOf("vllm")
	got := CanaryIngress(user, s, Desired{Weight: 25})
	if diff := cmp.Diff(readIngress(t, "canary-ingress.yaml"), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if p, err := ingressDrift(got, got); len(p) > 0 || err != nil {
		t.Errorf("the Ingress drifts from itself: %v, %v", p, err)
	}
	if diff := cmp.Diff(readIngress(t, "ingress.yaml"), user); diff != "" {
		t.Errorf("the cached Ingress was modified:\n%s", diff)
	}
	user.Spec.IngressClassName = nil
	if got := CanaryIngress(user, s, Desired{Weight: 25}); got.Annotations[ingressClass] != "nginx" {
		t.Error("without the field, the annotation names the class")
	}
	if got := CanaryIngress(user, s, Desired{Prepared: true}); got != nil {
		t.Errorf("without a share there is %v", got)
	}
	if got := CanaryIngress(user, setupOf("sglang"), Desired{Weight: 25}); got != nil {
		t.Errorf("without a backend there is %v", got)
	}
}

func TestWeightIn(t *testing.T) {
	for _, tt := range []struct {
		weight, total string
		want          int
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"30", "", 30}, {"200", "", 100}, {"5", "1000", 1}, {"30", "0", 30}, {"30", "x", 30},
	} {
		if got := weightIn(map[string]string{canaryWeight: tt.weight, canaryTotal: tt.total}); got != tt.want {
			t.Errorf("%q of %q is %d, want %d", tt.weight, tt.total, got, tt.want)
		}
	}
}

// TestSupported: what canary annotations can't express is reported at once, and never keeps a share from shrinking.
func TestSupported(t *testing.T) {
	for _, tt := range []struct {
		name    string
		desired Desired
		says    []string
	}{
		{"weight", Desired{Weight: 50}, nil},
		{"header", Desired{HeaderRoutes: []HeaderRoute{header("x-canary", "1", false)}}, []string{"Ingress llm", "header route beta", "Gateway API"}},
		{"mirror", Desired{Mirror: 1}, []string{"Ingress llm", "mirror", "Gateway API"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t).withoutRoutes().withIngress()
			want := pb.ErrorReason_ERROR_REASON_UNSPECIFIED
			if tt.says != nil {
				want = pb.ErrorReason_ERROR_REASON_UNSUPPORTED
			}
			checkSays(t, tt.name, Supported(c.setup.Policy, tt.desired), want, tt.says)
			c.applyAll(Desired{Prepared: true})
			c.ready()
			c.applyAll(Desired{Weight: 60})
			write, err := Next(c.setup, tt.desired, c.world)
			if err != nil || write == nil || write.Key != (Key{KindIngress, "llm-canary"}) {
				t.Fatalf("next is %v, %v: want the share to shrink first", write, err)
			}
			c.apply(write)
			for write != nil && err == nil {
				if write, err = Next(c.setup, tt.desired, c.world); write != nil {
					c.apply(write)
				}
			}
			checkSays(t, tt.name, err, want, tt.says)
			if v := Look(c.setup, tt.desired, c.world); (v.Stage == Blocked) != (tt.says != nil) {
				t.Errorf("view %+v", v)
			}
			if err := Supported(setupOf("vllm").Policy, tt.desired); err != nil {
				t.Errorf("routes: %v", err)
			}
		})
	}
}

// TestUnsupportedKeepsShare: what can't be expressed removes nothing that can.
func TestUnsupportedKeepsShare(t *testing.T) {
	c := newFakeCluster(t).withoutRoutes().withIngress()
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 10})
	for name, more := range map[string]Desired{
		"mirror": {Weight: 10, Mirror: 1},
		"route":  {Weight: 10, HeaderRoutes: []HeaderRoute{header("x-b", "1", false)}},
		"weight": {Weight: 20, Mirror: 1},
	} {
		if write, err := Next(c.setup, more, c.world); write != nil || drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_UNSUPPORTED {
			t.Errorf("%s: %v, %v", name, write, err)
		}
	}
}

// TestIngressOrder runs a release with an Ingress only: the writes of each stage.
func TestIngressOrder(t *testing.T) {
	c := newFakeCluster(t).withoutRoutes().withIngress()
	const service, canary, ingress = "patch Service vllm", "Service vllm-canary", "Ingress llm-canary"
	c.through([]stage{
		{"prepare", "no Ingress yet: one without a share may still leak", nil, Desired{Prepared: true}, []string{service, "create " + canary}, ""},
		{"too early", "no leader", nil, Desired{Weight: 10}, nil, ReasonNoCanaryEndpoints},
		{"up", "once endpoints are ready", c.ready, Desired{Weight: 10}, []string{"create " + ingress}, ""},
		{"more", "", nil, Desired{Weight: 50}, []string{"patch " + ingress}, ""},
		{"less", "the share shrinks without an endpoint", func() { c.world.CanaryReady = nil }, Desired{Weight: 20}, []string{"patch " + ingress}, ReasonNoCanaryEndpoints},
		{"not up", "the share is kept and does not grow", nil, Desired{Weight: 50}, nil, ReasonNoCanaryEndpoints},
		{"down", "a share shrinks whatever the state of the canary", nil, Desired{Prepared: true}, []string{"delete " + ingress}, ""},
		{"all", "", c.ready, Desired{Weight: 100}, []string{"create " + ingress}, ""},
		{"edited", "another total reduces 100 % to 10 %: the first write only shrinks, the second grows", func() {
			o := c.world.Ingresses["llm-canary"].DeepCopy()
			o.Annotations[canaryTotal], o.Annotations["tool"] = "1000", "x"
			c.world.Ingresses["llm-canary"] = o
		}, Desired{Weight: 100}, []string{"patch " + ingress, "patch " + ingress}, ""},
		{"clean up", "Ingress, Service, then the isolation", nil, Desired{}, []string{"delete " + ingress, "delete " + canary, service}, ""},
	})
}

// TestIngressFollows: the canary's Ingress follows the user's, and paths that the user removed are removed at once.
func TestIngressFollows(t *testing.T) {
	c := newFakeCluster(t).withoutRoutes().withIngress()
	half := Desired{Weight: 50}
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(half)
	for _, tt := range []struct {
		name, reason     string
		change           func(*networkingv1.Ingress)
		ready            bool
		want             []string
		path, unverified string // of the canary's first rule; of the View
	}{
		{"path removed", "without any endpoint", func(o *networkingv1.Ingress) {
			o.Spec.Rules[0].HTTP.Paths = o.Spec.Rules[0].HTTP.Paths[2:]
		}, false, []string{"patch Ingress llm-canary"}, "/metrics", ReasonNoCanaryEndpoints},
		{"path added, no endpoint", "requests would fail", func(o *networkingv1.Ingress) {
			o.Spec.Rules[0].HTTP.Paths[0].Path = "/v2"
		}, false, []string{"patch Ingress llm-canary"}, "", ReasonNoCanaryEndpoints},
		{"endpoint", "", func(*networkingv1.Ingress) {}, true, []string{"patch Ingress llm-canary"}, "/v2", ""},
		{"another port", "same path", func(o *networkingv1.Ingress) {
			o.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port = networkingv1.ServiceBackendPort{Number: 80}
		}, false, []string{"patch Ingress llm-canary"}, "/v2", ReasonNoCanaryEndpoints},
		{"other backend", "nothing is left to split", func(o *networkingv1.Ingress) {
			o.Spec.Rules, o.Spec.DefaultBackend = o.Spec.Rules[1:], nil
		}, true, []string{"delete Ingress llm-canary"}, "", ReasonNothingToSplit},
		{"missing", "", nil, true, nil, "", ReasonIngressMissing},
	} {
		c.world.CanaryReady = nil
		if tt.ready {
			c.ready()
		}
		if tt.change == nil {
			delete(c.world.Ingresses, "llm")
		} else {
			user := c.world.Ingresses["llm"].DeepCopy()
			tt.change(user)
			c.world.Ingresses["llm"] = user
		}
		if diff := cmp.Diff(tt.want, c.applyAll(half)); diff != "" {
			t.Errorf("%s: %s: writes (-want +got):\n%s", tt.name, tt.reason, diff)
		}
		got := ""
		if o := c.world.Ingresses["llm-canary"]; o != nil && len(o.Spec.Rules) > 0 {
			got = o.Spec.Rules[0].HTTP.Paths[0].Path
		}
		if v := Look(c.setup, half, c.world); got != tt.path || v.Reason != tt.unverified {
			t.Errorf("%s: path %q, want %q; view %+v, want reason %q", tt.name, got, tt.path, v, tt.unverified)
		}
	}
}

// TestIngressRepair: any change of the canary's Ingress is reverted.
func TestIngressRepair(t *testing.T) {
	half := Desired{Weight: 50}
	for name, change := range map[string]func(*networkingv1.Ingress){
		"class":           func(o *networkingv1.Ingress) { o.Spec.IngressClassName = nil },
		"TLS":             func(o *networkingv1.Ingress) { o.Spec.TLS = nil },
		"default backend": func(o *networkingv1.Ingress) { o.Spec.DefaultBackend = nil },
		"port by number": func(o *networkingv1.Ingress) {
			o.Spec.DefaultBackend.Service.Port = networkingv1.ServiceBackendPort{Number: 80}
		},
		"rules":      func(o *networkingv1.Ingress) { o.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Name = "whisper" },
		"label":      func(o *networkingv1.Ingress) { delete(o.Labels, "team") },
		"annotation": func(o *networkingv1.Ingress) { delete(o.Annotations, canaryMark) },
		"cookie":     func(o *networkingv1.Ingress) { o.Annotations[canaryMark+"-by-cookie"] = "x" },
	} {
		c := newFakeCluster(t).withoutRoutes().withIngress()
		c.applyAll(Desired{Prepared: true})
		c.ready()
		c.applyAll(half)
		want := c.world.Ingresses["llm-canary"].DeepCopy()
		edited := want.DeepCopy()
		change(edited)
		c.world.Ingresses["llm-canary"] = edited
		c.applyAll(half)
		got := c.world.Ingresses["llm-canary"]
		got.ResourceVersion, got.Generation = want.ResourceVersion, want.Generation
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCheckIngress(t *testing.T) {
	const notFound, bad, taken = pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, pb.ErrorReason_ERROR_REASON_REFERENCE_UNUSABLE, pb.ErrorReason_ERROR_REASON_NAME_TAKEN
	for _, tt := range []struct {
		name, reason string
		change       func(map[string]*networkingv1.Ingress)
		want         pb.ErrorReason
		says         []string
	}{
		{"valid", "", func(map[string]*networkingv1.Ingress) {}, 0, nil},
		{"missing", "named but missing", func(w map[string]*networkingv1.Ingress) { delete(w, "llm") }, notFound, []string{"Ingress llm", "create it"}},
		{"other backend", "nothing to split", func(w map[string]*networkingv1.Ingress) { w["llm"].Spec = networkingv1.IngressSpec{} }, bad,
			[]string{"Ingress llm", "no backend with Service vllm"}},
		{"foreign canary", "a canary can't have a canary", func(w map[string]*networkingv1.Ingress) { w["llm"].Annotations[canaryMark] = "true" }, bad,
			[]string{"Ingress llm is a canary Ingress itself", canaryMark}},
		{"taken", "a foreign Ingress", func(w map[string]*networkingv1.Ingress) {
			w["llm-canary"] = &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "llm-canary"}}
		}, taken, []string{"Ingress default/llm-canary", "rename Ingress llm"}},
		{"shared", "a release of another workload", func(w map[string]*networkingv1.Ingress) {
			w["llm-canary"] = &networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{Name: "llm-canary", Labels: map[string]string{RoleLabel: RoleCanary, StableLabel: "sglang"}}}
		}, taken, []string{"Ingress default/llm-canary", "wait for the release of sglang"}},
		{"own", "left by an earlier release", func(w map[string]*networkingv1.Ingress) {
			w["llm-canary"] = readIngress(t, "canary-ingress.yaml")
		}, 0, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t).withoutRoutes().withIngress()
			tt.change(c.world.Ingresses)
			checkSays(t, tt.reason, Check(c.setup, c.world), tt.want, tt.says)
		})
	}
}

// TestForeignIngressKept: a foreign Ingress is neither changed nor deleted; one that an earlier workload left is.
func TestForeignIngressKept(t *testing.T) {
	c := newFakeCluster(t).withoutRoutes().withIngress()
	c.applyAll(Desired{Prepared: true})
	c.ready()
	c.applyAll(Desired{Weight: 10})
	c.world.Ingresses["llm-canary"].OwnerReferences[0].UID = "earlier"
	want := []string{"delete Ingress llm-canary", "create Ingress llm-canary"}
	if diff := cmp.Diff(want, c.applyAll(Desired{Weight: 20})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.world.Ingresses["llm-canary"].DeletionTimestamp = &metav1.Time{}
	if v := Look(c.setup, Desired{Prepared: true}, c.world); v.Reason != ReasonIngressDeleting || v.Stage < Written {
		t.Errorf("being deleted: view %+v", v)
	}
	c.world.Ingresses["llm-canary"].DeletionTimestamp = nil
	c.world.Ingresses["llm-canary"].Labels = nil
	if _, err := Next(c.setup, Desired{Weight: 30}, c.world); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_NAME_TAKEN {
		t.Errorf("taken: %v", err)
	}
	want = []string{"delete Service vllm-canary", "patch Service vllm"}
	if diff := cmp.Diff(want, c.applyAll(Desired{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
