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

func cookie(name, value string) HeaderRoute {
	return HeaderRoute{Name: "cookie", Matches: []HeaderMatch{{Name: name, Value: value, Cookie: true}}}
}

// TestConvention: desired shares as annotations, and parsed again.
func TestConvention(t *testing.T) {
	const prefix = "nginx.ingress.kubernetes.io/"
	for _, tt := range []struct {
		name    string
		desired Desired
		want    map[string]string // nil: no canary Ingress
	}{
		{"nothing", Desired{}, nil},
		{"prepared", Desired{Prepared: true}, nil},
		{"weight", Desired{Weight: 1}, map[string]string{"canary": "true", "canary-weight": "1"}},
		{"all", Desired{Weight: 100}, map[string]string{"canary": "true", "canary-weight": "100"}},
		{"header alone", Desired{HeaderRoutes: []HeaderRoute{header("x-canary", "yes", false)}},
			map[string]string{"canary": "true", "canary-weight": "0", "canary-by-header": "x-canary", "canary-by-header-value": "yes"}},
		{"both", Desired{Weight: 5, HeaderRoutes: []HeaderRoute{header("x-canary", "a|b", true)}},
			map[string]string{"canary": "true", "canary-weight": "5", "canary-by-header": "x-canary", "canary-by-header-pattern": "^(?:a|b)$"}},
		{"cookie", Desired{HeaderRoutes: []HeaderRoute{cookie("tester", "always")}},
			map[string]string{"canary": "true", "canary-weight": "0", "canary-by-cookie": "tester"}},
		{"header and cookie", Desired{Weight: 5, HeaderRoutes: []HeaderRoute{header("x-canary", "yes", false), cookie("tester", "always")}},
			map[string]string{"canary": "true", "canary-weight": "5", "canary-by-header": "x-canary", "canary-by-header-value": "yes", "canary-by-cookie": "tester"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := CanaryIngress(readIngress(t, "ingress.yaml"), setupOf("vllm"), tt.desired)
			if o == nil {
				if tt.want != nil {
					t.Error("there is none")
				}
				return
			}
			got := map[string]string{}
			for k, v := range o.Annotations {
				if isConvention(k) {
					got[k[len(prefix):]] = v
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			share, err := shareFor(tt.desired)
			if back := shareOf(o.Annotations); err != nil || back.weight != share.weight || len(back.header) != len(share.header) {
				t.Errorf("%v reads as %v (%v)", share, back, err)
			}
		})
	}
}

func TestShareOf(t *testing.T) {
	for _, tt := range []struct {
		weight, total string
		want          int
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"30", "", 30}, {"200", "", 100}, {"5", "1000", 1}, {"30", "0", 30}, {"30", "x", 30},
	} {
		if got := shareOf(map[string]string{canaryWeight: tt.weight, canaryTotal: tt.total}).weight; got != tt.want {
			t.Errorf("%q of %q is %d, want %d", tt.weight, tt.total, got, tt.want)
		}
	}
}

// TestSupported: what canary annotations can't express is reported at once, and never keeps a share from shrinking.
func TestSupported(t *testing.T) {
	two := header("x-a", "1", false)
	two.Matches = append(two.Matches, HeaderMatch{Name: "x-b", Value: "2"})
	for _, tt := range []struct {
		name    string
		desired Desired
		says    []string
	}{
		{"weight", Desired{Weight: 50}, nil},
		{"header", Desired{HeaderRoutes: []HeaderRoute{header("x-canary", "v1.2:a b", false)}}, nil},
		{"expression", Desired{HeaderRoutes: []HeaderRoute{header("x-canary", `v[0-9]+\.(a|b)?`, true)}}, nil},
		{"mirror", Desired{Mirror: 1}, []string{"Ingress llm", "mirror", "Gateway API"}},
		{"two routes", Desired{HeaderRoutes: []HeaderRoute{header("x-a", "1", false), header("x-b", "1", false)}}, []string{"Ingress llm", "one route by a header", "beta", "remove one"}},
		{"two cookies", Desired{HeaderRoutes: []HeaderRoute{cookie("a", "always"), cookie("b", "always")}}, []string{"Ingress llm", "one route by a cookie", "remove one"}},
		{"header and cookie", Desired{HeaderRoutes: []HeaderRoute{header("x-a", "1", false), cookie("b", "always")}}, nil},
		{"cookie of another value", Desired{HeaderRoutes: []HeaderRoute{cookie("tester", "yes")}}, []string{"cookie tester", `"always"`, `"yes"`}},
		{"unsupported cookie", Desired{HeaderRoutes: []HeaderRoute{cookie("x#a", "always")}}, []string{"header route cookie", `"x#a"`}},
		{"two headers", Desired{HeaderRoutes: []HeaderRoute{two}}, []string{"Ingress llm", "header route beta", "2"}},
		{"unsupported name", Desired{HeaderRoutes: []HeaderRoute{header("x#a", "1", false)}}, []string{"header route beta", `"x#a"`}},
		{"unsupported value", Desired{HeaderRoutes: []HeaderRoute{header("x-a", "a;b", false)}}, []string{"header route beta", `"a;b"`, "x-a"}},
		{"unsupported expression", Desired{HeaderRoutes: []HeaderRoute{header("x-a", "(?P<n>a)", true)}}, []string{"header route beta", "(?P<n>a)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t).withoutRoutes().withIngress()
			want := pb.ErrorReason_ERROR_REASON_UNSPECIFIED
			if tt.says != nil {
				want = pb.ErrorReason_ERROR_REASON_UNSUPPORTED
			}
			checkSays(t, tt.name, Supported(c.setup.Policy, tt.desired), want, tt.says)
			c.settle(Desired{Prepared: true})
			c.ready()
			c.settle(Desired{Weight: 60})
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
	c.settle(Desired{Prepared: true})
	c.ready()
	now := Desired{Weight: 10, HeaderRoutes: []HeaderRoute{header("x-a", "1", false)}}
	c.settle(now)
	for name, more := range map[string]Desired{
		"mirror": {Weight: 10, HeaderRoutes: now.HeaderRoutes, Mirror: 1},
		"route":  {Weight: 10, HeaderRoutes: append([]HeaderRoute{header("x-b", "1", false)}, now.HeaderRoutes...)},
		"weight": {Weight: 20, HeaderRoutes: now.HeaderRoutes, Mirror: 1},
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
	beta := []HeaderRoute{header("x-canary", "yes", false)}
	c.through([]stage{
		{"prepare", "no Ingress yet: one without a share may still leak", nil, Desired{Prepared: true}, []string{service, "create " + canary}, ""},
		{"too early", "no leader", nil, Desired{Weight: 10}, nil, ReasonNoCanaryEndpoints},
		{"up", "once endpoints are ready", c.ready, Desired{Weight: 10}, []string{"create " + ingress}, ""},
		{"more", "", nil, Desired{Weight: 50, HeaderRoutes: beta}, []string{"patch " + ingress}, ""},
		{"headers only", "weight 0 and a header is a share", nil, Desired{HeaderRoutes: beta}, []string{"patch " + ingress}, ""},
		{"a cookie too", "", nil, Desired{HeaderRoutes: append([]HeaderRoute{cookie("tester", "always")}, beta...)}, []string{"patch " + ingress}, ""},
		{"not up", "a header is removed, a cookie kept, and no other added", func() { c.world.CanaryReady = nil },
			Desired{HeaderRoutes: []HeaderRoute{cookie("tester", "always"), header("x-other", "yes", false)}}, []string{"patch " + ingress}, ReasonNoCanaryEndpoints},
		{"back", "", c.ready, Desired{HeaderRoutes: append([]HeaderRoute{cookie("tester", "always")}, beta...)}, []string{"patch " + ingress}, ""},
		{"without the cookie", "the header stays", nil, Desired{HeaderRoutes: beta}, []string{"patch " + ingress}, ""},
		{"not up again", "the share is kept and does not grow", func() { c.world.CanaryReady = nil }, Desired{Weight: 50, HeaderRoutes: beta}, nil, ReasonNoCanaryEndpoints},
		{"down", "a share shrinks whatever the state of the canary", nil, Desired{Prepared: true}, []string{"delete " + ingress}, ""},
		{"all", "", c.ready, Desired{Weight: 100}, []string{"create " + ingress}, ""},
		{"edited", "another total reduces 100 % to 10 %: the first write only shrinks, the second grows", func() {
			o := c.world.Ingresses["llm-canary"].DeepCopy()
			o.Annotations[canaryTotal], o.Annotations["tool"] = "1000", "x"
			c.world.Ingresses["llm-canary"] = o
		}, Desired{Weight: 100}, []string{"patch " + ingress, "patch " + ingress}, ""},
		{"clean up", "Ingress, Service, then the fence", nil, Desired{}, []string{"delete " + ingress, "delete " + canary, service}, ""},
	})
}

// TestIngressFollows: the canary's Ingress follows the user's, and paths that the user removed are removed at once.
func TestIngressFollows(t *testing.T) {
	c := newFakeCluster(t).withoutRoutes().withIngress()
	half := Desired{Weight: 50}
	c.settle(Desired{Prepared: true})
	c.ready()
	c.settle(half)
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
		if diff := cmp.Diff(tt.want, c.settle(half)); diff != "" {
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
		c.settle(Desired{Prepared: true})
		c.ready()
		c.settle(half)
		want := c.world.Ingresses["llm-canary"].DeepCopy()
		edited := want.DeepCopy()
		change(edited)
		c.world.Ingresses["llm-canary"] = edited
		c.settle(half)
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
	c.settle(Desired{Prepared: true})
	c.ready()
	c.settle(Desired{Weight: 10})
	c.world.Ingresses["llm-canary"].OwnerReferences[0].UID = "earlier"
	want := []string{"delete Ingress llm-canary", "create Ingress llm-canary"}
	if diff := cmp.Diff(want, c.settle(Desired{Weight: 20})); diff != "" {
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
	if diff := cmp.Diff(want, c.settle(Desired{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
