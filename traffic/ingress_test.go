// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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
	assert.Empty(t, cmp.Diff(readIngress(t, "canary-ingress.yaml"), got), "(-want +got)")
	p, err := ingressDrift(got, got)
	assert.True(t, len(p) == 0 && err == nil, "the Ingress drifts from itself: %v, %v", p, err)
	assert.Empty(t, cmp.Diff(readIngress(t, "ingress.yaml"), user), "the cached Ingress was modified")
	user.Spec.IngressClassName = nil
	got = CanaryIngress(user, s, Desired{Weight: 25})
	assert.Equal(t, "nginx", got.Annotations[ingressClass], "without the field, the annotation names the class")
	got = CanaryIngress(user, s, Desired{Prepared: true})
	assert.Nil(t, got, "without a share there is %v", got)
	got = CanaryIngress(user, setupOf("sglang"), Desired{Weight: 25})
	assert.Nil(t, got, "without a backend there is %v", got)
}

func TestWeightIn(t *testing.T) {
	for _, tt := range []struct {
		weight, total string
		want          int
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"30", "", 30}, {"200", "", 100}, {"5", "1000", 1}, {"30", "0", 30}, {"30", "x", 30},
	} {
		assert.Equal(t, tt.want, weightIn(map[string]string{canaryWeight: tt.weight, canaryTotal: tt.total}), "%q of %q", tt.weight, tt.total)
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
			require.True(t, err == nil && write != nil && write.Key == (Key{KindIngress, "llm-canary"}),
				"next is %v, %v: want the share to shrink first", write, err)
			c.apply(write)
			for write != nil && err == nil {
				if write, err = Next(c.setup, tt.desired, c.world); write != nil {
					c.apply(write)
				}
			}
			checkSays(t, tt.name, err, want, tt.says)
			v := Look(c.setup, tt.desired, c.world)
			assert.Equal(t, tt.says != nil, v.Stage == Blocked, "view %+v", v)
			assert.NoError(t, Supported(setupOf("vllm").Policy, tt.desired), "routes")
		})
	}
}
