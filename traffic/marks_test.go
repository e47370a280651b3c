// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"pgregory.net/rapid"
)

// TestForgedPolicy: whatever a forged record names and asks for, no object of another workload is written, whether or not that
// workload has a release.
func TestForgedPolicy(t *testing.T) {
	for name, provider := range providers {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) { forge(t, rt, provider(t)) })
		})
	}
}

func forge(t *testing.T, rt *rapid.T, c *fakeCluster) {
	t.Helper()
	if rapid.Bool().Draw(rt, "shared") {
		c.addBackends("evil", "missing")
	}
	if rapid.Bool().Draw(rt, "released") {
		c.applyAll(Desired{Prepared: true})
		c.ready()
		d := drawDesired(rt)
		if Supported(c.setup.Policy, d) != nil {
			d = supported(d)
		}
		c.applyAll(d)
	}
	own := c.world.Stable.DeepCopy()
	own.Name, own.Annotations = "evil", nil
	own.Spec.Selector = map[string]string{lws.SetNameLabelKey: "evil", lws.WorkerIndexLabelKey: leaderIndex}
	services := map[string]*corev1.Service{"vllm": c.world.Stable, "evil": own, "missing": nil}
	if c.world.Canary != nil {
		services["vllm-canary"] = c.world.Canary
	}
	names := slices.Sorted(maps.Keys(services))

	s, w := setupOf("evil"), c.world
	s.Owner.UID = "evil"
	s.Policy, s.Shared = c.setup.Policy, c.setup.Policy.Routes
	s.Policy.StableService = rapid.SampledFrom(names).Draw(rt, "stable")
	s.Policy.CanaryService = rapid.SampledFrom(slices.DeleteFunc(names, func(n string) bool { return n == s.Policy.StableService })).Draw(rt, "canary")
	w.Stable, w.Canary, w.StableReady = services[s.Policy.StableService], services[s.Policy.CanaryService], nil
	switch s.Policy.StableService {
	case "evil":
		w.StableReady = []string{"evil-0"}
	case "vllm":
		w.StableReady = []string{"vllm-0", "vllm-1"}
	}
	w.CanaryReady = []string{"evil-abc123-0"}
	if rapid.Bool().Draw(rt, "in place") {
		s.Canary = s.Stable
		s.StablePin[lws.RevisionKey], s.CanaryPin[lws.RevisionKey] = "old", "new"
	}
	if rapid.Bool().Draw(rt, "deleted") {
		s.Leader, s.Worker = nil, nil
	}
	d := drawDesired(rt)
	d.Prepared, d.Isolated = rapid.Bool().Draw(rt, "prepared"), rapid.Bool().Draw(rt, "isolated")
	if d.Weight+d.Mirror+len(d.HeaderRoutes) == 0 {
		d.SplitEnded, d.HandedOver = rapid.Bool().Draw(rt, "splitEnded"), rapid.Bool().Draw(rt, "handed over")
	}
	write, err := Next(s, d, w)
	if write != nil && write.Key != (Key{KindService, "evil"}) && (write.Key != Key{KindService, "missing"} || write.Verb != Create) {
		rt.Fatalf("%s, although policy %+v is that of another workload", write, s.Policy)
	}
	if v := Look(s, d, w); err != nil && (v.Stage != Blocked || v.Message == "") {
		rt.Fatalf("%v: view %+v", err, v)
	}
}

// addBackends adds Services to each rule of the routes that has backendRefs.
func (c *fakeCluster) addBackends(services ...string) {
	for _, r := range c.world.routes(c.setup) {
		rules := objectList(cloneObject(r.Object.Object["spec"].(object)), "rules")
		for _, rule := range rules {
			for _, name := range services {
				if refs := objectList(rule, "backendRefs"); len(refs) > 0 {
					setRefs(rule, append(refs, object{"name": name, "port": int64(80), "weight": int64(1)}))
				}
			}
		}
		c.accept(r.with(c.t, anySlice(rules)))
	}
}
