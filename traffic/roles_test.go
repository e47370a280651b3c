// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// roleSetup is that of a DisaggregatedSet whose prefill receives requests.
func roleSetup() Setup {
	set := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Namespace: "serving", Name: "llm"}}
	return NewSetupOfRole(set, "prefill", "00000001", "00000002", Policy{StableService: "llm"})
}

// The sides of a DisaggregatedSet differ by the revision on their pods. A Service must select its entry role, and not by the name of a child.
func TestRolesAreIsolatedByRevision(t *testing.T) {
	t.Parallel()
	s := roleSetup()
	user := map[string]string{
		"disaggregatedset.x-k8s.io/name": "llm", "disaggregatedset.x-k8s.io/role": "prefill", "leaderworkerset.sigs.k8s.io/worker-index": "0",
	}
	svc := func(labels map[string]string) selector {
		return serviceSelector(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "llm"}, Spec: corev1.ServiceSpec{Selector: labels}})
	}
	if err := svc(user).check(s); err != nil {
		t.Errorf("a Service of the entry role is refused: %v", err)
	}
	for _, wrong := range []map[string]string{
		{"disaggregatedset.x-k8s.io/role": "decode"}, {"leaderworkerset.sigs.k8s.io/name": "llm-00000001-prefill"}, {"disaggregatedset.x-k8s.io/name": "other"},
	} {
		labels := maps.Clone(user)
		maps.Copy(labels, wrong)
		if err := svc(labels).check(s); err == nil {
			t.Errorf("a Service with %v is accepted", wrong)
		}
	}
	for _, tt := range []struct {
		d    Desired
		want string
	}{{prepared, "00000001"}, {Desired{HandedOver: true, Prepared: true}, "00000002"}} {
		labels, _, changed, err := svc(user).isolate(s, tt.d)
		if err != nil || !changed || labels["disaggregatedset.x-k8s.io/revision"] != tt.want {
			t.Errorf("%+v: %v, %v", tt.d, labels, err)
		}
		if !svc(labels).ownIsolation(s) {
			t.Errorf("%v is not the set's own isolation", labels)
		}
	}
	if isolated := svc(map[string]string{"leaderworkerset.sigs.k8s.io/name": "llm"}); !isolated.foreignIsolation(s) {
		t.Error("the isolation of a LeaderWorkerSet with the set's name is the set's own")
	}
}

var prepared = Desired{Prepared: true}

// Leaders of both sides are known by their names, with and without the number of a slice.
func TestRoleLeaders(t *testing.T) {
	t.Parallel()
	s := roleSetup()
	for pod, want := range map[string][3]bool{ // stable, canary, foreign
		"llm-00000001-prefill-0":   {true, false, false},
		"llm-0-00000001-prefill-3": {true, false, false},
		"llm-00000002-prefill-0":   {false, true, false},
		"llm-00000003-prefill-0":   {false, false, false},
		"llm-00000001-decode-0":    {false, false, true},
		"llm-0":                    {false, false, true},
	} {
		w := World{StableReady: []string{pod}}
		if got := [3]bool{w.leaderBehindStable(s.StablePin) != "", w.leaderBehindStable(s.CanaryPin) != "", w.foreignPod(s) != ""}; got != want {
			t.Errorf("%s is stable, canary, foreign: %v, want %v", pod, got, want)
		}
	}
}
