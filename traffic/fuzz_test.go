// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"maps"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// FuzzParsePolicy: a traffic policy is either rejected with the invalid fields or has valid names only.
func FuzzParsePolicy(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		message := &pb.TrafficPolicy{}
		if proto.Unmarshal(raw, message) != nil {
			return
		}
		p, bad := ParsePolicy(message)
		for _, v := range bad {
			assert.True(t, strings.HasPrefix(v.Field, policyField+".") && v.Description != "", "violation %+v", v)
		}
		if len(bad) > 0 {
			return
		}
		s := setupOf("vllm")
		s.Policy = p
		seen := map[Key]bool{}
		for _, o := range s.Objects() {
			assert.False(t, o.Name == "" || seen[o], "%v names %v, twice or without a name", message, o)
			seen[o] = true
		}
	})
}

// FuzzParseHeaderRoute: a valid header route can be added to any route, is detected there, and is removed without a trace.
func FuzzParseHeaderRoute(f *testing.F) {
	f.Fuzz(func(t *testing.T, raw []byte) {
		request := &pb.SetHeaderRouteRequest{}
		if proto.Unmarshal(raw, request) != nil {
			return
		}
		route, bad := ParseHeaderRoute(request.GetName(), request.GetMatches())
		for _, v := range bad {
			assert.False(t, v.Field == "" || v.Description == "", "violation %+v", v)
		}
		if len(bad) > 0 || len(route.Matches) == 0 {
			return
		}
		s, d := setupOf("vllm"), Desired{Weight: 10, HeaderRoutes: []HeaderRoute{route}}
		for _, name := range []string{"httproute.yaml", "grpcroute.yaml"} {
			user := readRoute(t, name)
			split, _, err := desiredRoute(user, s, d)
			if err != nil {
				continue // a rule matches the header already
			}
			_, again, err := desiredRoute(split, s, d)
			assert.True(t, !again && err == nil, "%s with %+v is written again (%v)", name, route, err)
			restored, _, err := desiredRoute(split, s, Desired{})
			assert.True(t, err == nil && diffJSON(user.Object.Object, restored.Object.Object) == "",
				"%s with %+v is not restored (%v)", name, route, err)
		}
	})
}

// FuzzRoute: whatever a route contains, the writes end, change nothing of it but rules and our annotations, and are undone.
func FuzzRoute(f *testing.F) {
	for _, name := range []string{"httproute.yaml", "grpcroute.yaml"} {
		f.Add(name == "grpcroute.yaml", asText(f, readRoute(f, name).Object.Object), uint8(20))
	}
	f.Add(false, `{"spec":{"rules":[{"backendRefs":[{"name":"vllm","weight":-1},{"name":"vllm-canary","weight":1000001}],"matches":[{}]}]}}`, uint8(100))
	f.Add(false, `{"metadata":{"annotations":{"lockstep.dev/share":"{}"}},"spec":{"rules":"none","parentRefs":{}},"status":{"parents":[1]}}`, uint8(0))
	f.Fuzz(func(t *testing.T, grpc bool, raw string, weight uint8) {
		content := map[string]any{}
		if json.Unmarshal([]byte(raw), &content) != nil || content == nil {
			return
		}
		c := newFakeCluster(t)
		key := c.setup.Policy.Routes[0]
		if grpc {
			key = c.setup.Policy.Routes[1]
		}
		user := &unstructured.Unstructured{Object: content}
		annotations := user.GetAnnotations()
		content["metadata"] = map[string]any{} // the API server accepts no other
		user.SetAnnotations(annotations)
		user.SetName(key.Name)
		user.SetKind(key.Kind)
		user.SetResourceVersion("1")
		c.setup.Policy.Routes = []Key{key}
		c.world.Routes = map[Key]*unstructured.Unstructured{key: user}
		before := user.DeepCopy()
		c.hostile(Desired{Weight: int(weight % 101), Isolated: true, Prepared: true})
		checkUntouched(t, before, c.world.Routes[key], "rules")
		c.world.CanaryReady = []string{"vllm-canary-0"}
		c.hostile(Desired{Weight: int(weight % 101), Isolated: true, Prepared: true})
		checkUntouched(t, before, c.world.Routes[key], "rules")
		if !c.hostile(Desired{}) || strings.Contains(raw, "canary") || strings.Contains(raw, "lockstep.dev") || strings.Contains(raw, "u00") {
			return // what it had of ours is removed, too
		}
		now := c.world.Routes[key].DeepCopy()
		now.SetResourceVersion("1")
		now.SetGeneration(0)
		assert.Empty(t, diffJSON(before.Object, now.Object), "a route is not restored:\n%s", raw)
	})
}

// FuzzIsolation: whatever the stable Service and one of the canary's name contain, the writes end, change nothing of the user's Service but its
// selector and our annotations, and are undone.
func FuzzIsolation(f *testing.F) {
	f.Add(asText(f, readService(f, "service.yaml")), "")
	f.Add(`{"spec":{"selector":{"leaderworkerset.sigs.k8s.io/name":"vllm","lockstep.dev/serving":"true"}}}`, `{"spec":{"selector":{}}}`)
	f.Add(`{"metadata":{"annotations":{"lockstep.dev/isolation":"{\"a\":null}"}},"spec":{"type":"ExternalName"}}`, `{"metadata":{"labels":{"lockstep.dev/stable":"other"}}}`)
	f.Fuzz(func(t *testing.T, stable, canary string) {
		c := newFakeCluster(t).withoutRoutes().withIngress()
		serviceOf := func(raw, name string) *corev1.Service {
			s := &corev1.Service{}
			if json.Unmarshal([]byte(raw), s) != nil {
				return nil
			}
			s.ObjectMeta = metav1.ObjectMeta{
				Name: name, Namespace: c.world.Stable.Namespace, UID: "u", ResourceVersion: "1", Labels: s.Labels, Annotations: s.Annotations,
			}
			return s
		}
		if c.world.Stable = serviceOf(stable, "vllm"); c.world.Stable == nil {
			return
		}
		c.world.Canary = serviceOf(canary, c.setup.Policy.CanaryService)
		before := &unstructured.Unstructured{Object: c.asMap(c.world.Stable)}
		after := func() *unstructured.Unstructured { return &unstructured.Unstructured{Object: c.asMap(c.world.Stable)} }
		c.hostile(Desired{Isolated: true, Prepared: true})
		checkUntouched(t, before, after(), "selector")
		c.hostile(Desired{Weight: 10, Isolated: true, Prepared: true})
		checkUntouched(t, before, after(), "selector")
		c.hostile(Desired{})
		checkUntouched(t, before, after(), "selector")
	})
}

// hostile makes writes until none is due or an error is reported, and reports whether none was.
func (c *fakeCluster) hostile(d Desired) bool {
	c.t.Helper()
	for range 20 {
		before := c.asMap(c.world)
		Look(c.setup, d, c.world)
		write, err := Next(c.setup, d, c.world)
		require.Empty(c.t, diffJSON(before, c.asMap(c.world)), "the objects were modified")
		require.False(c.t, err != nil && drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_UNSPECIFIED, "an error without a reason: %v", err)
		if err != nil || write == nil {
			return err == nil
		}
		c.apply(write)
	}
	c.t.Fatal("no end after 20 writes")
	return false
}

func (c *fakeCluster) asMap(v any) map[string]any {
	out := map[string]any{}
	if w, ok := v.(World); ok {
		for key, o := range w.Routes {
			out[key.String()] = o.DeepCopy().Object
		}
		v = map[string]any{"stable": w.Stable, "canary": w.Canary}
	}
	more := map[string]any{}
	c.decode(v, &more)
	maps.Copy(out, more)
	return out
}

// checkUntouched: of the spec only one field differs, and of the annotations only ours.
func checkUntouched(t *testing.T, before, after *unstructured.Unstructured, field string) {
	t.Helper()
	strip := func(o *unstructured.Unstructured) map[string]any {
		o = o.DeepCopy()
		if spec, ok := o.Object["spec"].(map[string]any); ok {
			delete(spec, field)
			if len(spec) == 0 {
				delete(o.Object, "spec")
			}
		}
		annotations := map[string]any{}
		for key, value := range o.GetAnnotations() {
			if !strings.HasPrefix(key, "lockstep.dev/") {
				annotations[key] = value
			}
		}
		o.Object["metadata"] = map[string]any{"annotations": annotations}
		return o.Object
	}
	assert.Empty(t, diffJSON(strip(before), strip(after)), "more than %s was changed", field)
}

func asText(f *testing.F, v any) string {
	f.Helper()
	raw, err := json.Marshal(v)
	require.NoError(f, err)
	return string(raw)
}
