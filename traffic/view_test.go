// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestWithdrawn: the canary's share is withdrawn once the gateways have accepted that, whatever else blocks the release.
func TestWithdrawn(t *testing.T) {
	none := Desired{Prepared: true}
	refs := func(status string) func(*fakeCluster) {
		return func(c *fakeCluster) {
			c.acceptAll()
			key := c.setup.Policy.Routes[0]
			r := withStatus(c.t, Route{key, c.world.Routes[key]}, func(all []any) []any {
				for _, one := range all {
					if m, ok := one.(map[string]any); ok && m["type"] == status {
						m["status"] = "False"
					}
				}
				return all
			})
			c.world.Routes[key] = r.Object
		}
	}
	for _, tt := range []struct {
		name, reason            string
		change                  func(*fakeCluster)
		withdrawn, acknowledged bool
	}{
		{"acknowledged", "the gateways have accepted it", (*fakeCluster).acceptAll, true, true},
		{"not observed", "the gateways have not observed it", func(*fakeCluster) {}, false, false},
		{"a ref unresolved", "it does not lead to the canary", refs("ResolvedRefs"), true, false},
		{"a rule dropped", "it does not lead to the canary", func(c *fakeCluster) {
			c.acceptAll()
			key := c.setup.Policy.Routes[0]
			c.world.Routes[key] = withStatus(c.t, Route{key, c.world.Routes[key]}, func(all []any) []any {
				return append(all, map[string]any{"type": "PartiallyInvalid", "status": "True", "observedGeneration": int64(7)})
			}).Object
		}, true, false},
		{"not accepted", "a gateway may still serve the old rules", refs("Accepted"), false, false},
		{"stable Service missing", "no route leads to the canary", func(c *fakeCluster) { c.acceptAll(); c.world.Stable = nil }, true, false},
		{"isolation blocked", "no route leads to the canary", func(c *fakeCluster) {
			c.acceptAll()
			c.world.Stable = c.world.Stable.DeepCopy()
			c.world.Stable.Spec.Selector["leaderworkerset.sigs.k8s.io/name"] = "others"
		}, true, false},
		{"stable Service missing, not observed", "the gateways have not observed it", func(c *fakeCluster) { c.world.Stable = nil }, false, false},
		{"a share is left", "it can be removed", func(c *fakeCluster) {
			c.acceptAll()
			key := c.setup.Policy.Routes[1]
			c.world.Routes[key] = apply(c.t, Route{key, c.world.Routes[key]}, c.setup, Desired{Weight: 1}).Object
			c.world.Stable = nil
		}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newFakeCluster(t)
			c.applyAll(none)
			c.ready()
			c.applyAll(Desired{Weight: 50})
			c.applyAll(none)
			for key, o := range c.world.Routes {
				next := o.DeepCopy()
				next.SetGeneration(7) // the gateways have observed an earlier one
				unstructured.RemoveNestedField(next.Object, "status")
				c.world.Routes[key] = next
			}
			tt.change(c)
			if v := Look(c.setup, none, c.world); v.Withdrawn != tt.withdrawn || (v.Stage >= Acknowledged) != tt.acknowledged {
				t.Errorf("%s: %+v", tt.reason, v)
			}
		})
	}
}
