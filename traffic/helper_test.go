// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"
)

// workload returns a stable workload whose groups have a leader and a worker.
func workload(name string) *lws.LeaderWorkerSet {
	w := &lws.LeaderWorkerSet{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "stable"}}
	w.Spec.LeaderWorkerTemplate.Size = ptr.To[int32](2)
	w.Spec.LeaderWorkerTemplate.WorkerTemplate.Labels = map[string]string{"app": name}
	return w
}

// setupOf returns the Setup of a release whose workload and Service have the same name.
func setupOf(name string, routes ...Key) Setup {
	p := Policy{StableService: name, CanaryService: name + "-canary", Routes: routes}
	return NewSetup(workload(name), name+"-abc123", p, nil)
}

func read(t testing.TB, file string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", file))
	require.NoError(t, err)
	return raw
}

func readService(t testing.TB, file string) *corev1.Service {
	t.Helper()
	return readAs(t, file, &corev1.Service{})
}

func readIngress(t testing.TB, file string) *networkingv1.Ingress {
	t.Helper()
	return readAs(t, file, &networkingv1.Ingress{})
}

func readAs[T any](t testing.TB, file string, into *T) *T {
	t.Helper()
	require.NoError(t, yaml.UnmarshalStrict(read(t, file), into))
	return into
}

// readRoute decodes numbers as a client does. A pool is read like a route.
func readRoute(t testing.TB, file string) Route {
	t.Helper()
	raw, err := yaml.YAMLToJSON(read(t, file))
	require.NoError(t, err)
	content := map[string]any{}
	require.NoError(t, json.Unmarshal(raw, &content))
	o := &unstructured.Unstructured{Object: content}
	return Route{Key{o.GetKind(), o.GetName()}, o}
}

// with returns the route with other rules.
func (r Route) with(t testing.TB, rules []any) Route {
	t.Helper()
	o := r.Object.DeepCopy()
	require.NoError(t, unstructured.SetNestedSlice(o.Object, rules, "spec", "rules"))
	return Route{r.Key, o}
}

// desiredRoute returns a route with its RoutePatch, and whether that changes it.
func desiredRoute(r Route, s Setup, d Desired) (next Route, changed bool, err error) {
	return r.patched(RoutePatch(r, s, d, false))
}

// shrunkRoute is desiredRoute with shrinkOnly.
func shrunkRoute(r Route, s Setup, d Desired) (next Route, changed bool, err error) {
	return r.patched(RoutePatch(r, s, d, true))
}

func (r Route) patched(p map[string]any, err error) (next Route, changed bool, _ error) {
	if err != nil || len(p) == 0 {
		return r, false, err
	}
	next = Route{r.Key, &unstructured.Unstructured{}}
	base, err := json.Marshal(r.Object)
	change, errChange := json.Marshal(p)
	after, errMerge := jsonpatch.MergePatch(base, change)
	if err := errors.Join(err, errChange, errMerge, next.Object.UnmarshalJSON(after)); err != nil {
		return r, false, err
	}
	if len(next.Object.GetAnnotations()) == 0 {
		next.Object.SetAnnotations(nil) // as the API server writes none
	}
	return next, true, nil
}

// apply returns the route with the desired rules.
func apply(t testing.TB, r Route, s Setup, d Desired) Route {
	t.Helper()
	before := r.Object.DeepCopy()
	next, _, err := desiredRoute(r, s, d)
	require.NoError(t, err)
	require.Empty(t, diffJSON(before.Object, r.Object.Object), "the cached route was modified")
	return next
}
