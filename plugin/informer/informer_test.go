// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package informer

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

var configMaps = corev1.SchemeGroupVersion.WithResource("configmaps")

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": "vllm"}}}
}

func indexByApp(obj any) ([]string, error) {
	return []string{obj.(*corev1.ConfigMap).Labels["app"]}, nil
}

// fixture is an Informer of ConfigMaps on a fake cluster.
type fixture struct {
	*Informer

	t       *testing.T
	core    *fake.Clientset
	changed chan struct{} // merged calls of Changed
	ended   chan struct{}
	stop    context.CancelFunc
}

func newFixture(t *testing.T, adjust func(*Config, *fake.Clientset)) *fixture {
	t.Helper()
	b := &fixture{t: t, core: fake.NewClientset(), changed: make(chan struct{}, 1), ended: make(chan struct{})}
	config := Config{
		Source: NewSource(configMaps, b.core, b.core.CoreV1().ConfigMaps(""), ""), Example: &corev1.ConfigMap{}, Indexers: cache.Indexers{"app": indexByApp},
		Handler: OnChange(func(_, _ *corev1.ConfigMap) {}), Changed: b.signal, RetryPeriod: time.Nanosecond,
	}
	adjust(&config, b.core)
	b.Informer = New(config)
	return b
}

// run runs the informer until the test ends.
func (b *fixture) run() {
	ctx, stop := context.WithCancel(b.t.Context())
	b.stop = stop
	go func() { b.Run(ctx); close(b.ended) }()
	b.t.Cleanup(func() { stop(); <-b.ended })
}

func (b *fixture) signal() {
	select {
	case b.changed <- struct{}{}:
	default:
	}
}

// eventually waits for Changed until the condition holds: it fails if Changed is not called then.
func (b *fixture) eventually(what string, condition func() bool) {
	b.t.Helper()
	timeout := time.After(await.Patience)
	for !condition() {
		select {
		case <-b.changed:
		case <-timeout:
			b.t.Fatalf("%s: Err is %v", what, b.Err())
		}
	}
}

// discoveries counts the requests for what is installed.
func (b *fixture) discoveries() int {
	return len(slices.DeleteFunc(b.core.Actions(), func(a clienttesting.Action) bool { return a.GetResource().Resource != "resource" }))
}

func (b *fixture) notSynced() bool {
	return drivererr.Reason(b.Err()) == pb.ErrorReason_ERROR_REASON_NOT_SYNCED
}

func TestMakesNoRequestBeforeStart(t *testing.T) {
	b := newFixture(t, func(c *Config, core *fake.Clientset) { c.Discovery = core.Discovery() })
	b.run()
	if b.Started() || b.Pending() || !b.notSynced() {
		t.Errorf("before Start: started %t, pending %t, Err %v", b.Started(), b.Pending(), b.Err())
	}
	b.stop()
	<-b.ended
	assert.Empty(t, b.core.Actions(), "requests before Start")
}

func TestEmptyCacheCallsChanged(t *testing.T) {
	b := newFixture(t, func(*Config, *fake.Clientset) {})
	first, again := b.Start(), b.Start()
	assert.True(t, first && !again, "Start is the first call: %t, %t", first, again)
	if !b.Pending() || !b.notSynced() {
		t.Errorf("before Run: pending %t, Err %v", b.Pending(), b.Err())
	}
	b.run()
	b.eventually("the cache is filled", b.Synced)
	if b.Pending() || b.Err() != nil {
		t.Errorf("filled: pending %t, Err %v", b.Pending(), b.Err())
	}
}

func TestMissingPermission(t *testing.T) {
	var granted atomic.Bool
	b := newFixture(t, func(_ *Config, core *fake.Clientset) {
		fakes.React(&core.Fake, "list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !granted.Load(), nil, apierrors.NewForbidden(configMaps.GroupResource(), "", errors.New("no role allows it"))
		})
	})
	b.Start()
	b.run()
	b.eventually("the permission is missing", func() bool { return apierrors.IsForbidden(b.Err()) })
	assert.Equal(t, `fill the cache of configmaps: failed to list *v1.ConfigMap: configmaps is forbidden: no role allows it`, b.Err().Error(), "Err")
	assert.False(t, b.Pending(), "pending without permission")
	granted.Store(true)
	b.eventually("the permission is granted", func() bool { return b.Err() == nil })
}

// A required API is looked for until it is installed.
func TestMissingAPI(t *testing.T) {
	missing := errors.New("install the CRD")
	var installed, broken atomic.Bool
	b := newFixture(t, func(c *Config, core *fake.Clientset) {
		c.Discovery, c.Missing = core.Discovery(), missing
		serve(core, &installed, &broken)
	})
	b.Start()
	b.run()
	b.eventually("the API is missing", func() bool { return errors.Is(b.Err(), missing) })
	assert.False(t, b.Pending(), "pending without the API")
	broken.Store(true)
	b.eventually("discovery fails", func() bool { return apierrors.IsInternalError(b.Err()) })
	broken.Store(false)
	b.eventually("the API is missing", func() bool { return errors.Is(b.Err(), missing) })
	installed.Store(true)
	b.eventually("the cache is filled", b.Synced)
}

// Without an optional API nothing is missing. It is looked for again when there is a sign of it.
func TestMissingOptionalAPI(t *testing.T) {
	var installed, broken atomic.Bool
	broken.Store(true)
	b := newFixture(t, func(c *Config, core *fake.Clientset) {
		c.Discovery = core.Discovery()
		serve(core, &installed, &broken)
	})
	b.Start()
	b.run()
	b.eventually("discovery fails", func() bool { return apierrors.IsInternalError(b.Err()) })
	broken.Store(false)
	b.eventually("there is nothing to read", func() bool { return b.Err() == nil })
	if b.Synced() || b.Pending() {
		t.Errorf("without the API: synced %t, pending %t", b.Synced(), b.Pending())
	}
	b.Recheck()
	broken.Store(true)
	b.eventually("discovery fails again", func() bool { b.Recheck(); return apierrors.IsInternalError(b.Err()) })
	broken.Store(false)
	b.eventually("there is nothing to read", func() bool { return b.Err() == nil })
	before := b.discoveries()
	installed.Store(true)
	b.Recheck()
	b.eventually("the cache is filled", b.Synced)
	b.Recheck()
	assert.Equal(t, 1, b.discoveries()-before, "discoveries, want the one that was asked for")
}

func TestRunEndsWithItsContext(t *testing.T) {
	for name, adjust := range map[string]func(*Config, *fake.Clientset){
		"while the API is missing":  func(c *Config, core *fake.Clientset) { c.Discovery = core.Discovery() },
		"while the cache is filled": func(*Config, *fake.Clientset) {},
	} {
		t.Run(name, func(t *testing.T) {
			b := newFixture(t, adjust)
			b.Start()
			b.run()
			b.eventually("Run is at work", func() bool { return b.Err() == nil })
			b.stop()
			<-b.ended
		})
	}
}

// serve makes discovery answer with ConfigMaps if they are installed, or with an error if it is broken.
func serve(core *fake.Clientset, installed, broken *atomic.Bool) {
	core.Resources = []*metav1.APIResourceList{{GroupVersion: "v1"}}
	fakes.React(&core.Fake, "get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		switch {
		case broken.Load():
			return true, nil, apierrors.NewInternalError(errors.New("no answer"))
		case !installed.Load():
			return true, nil, apierrors.NewNotFound(configMaps.GroupResource(), "v1")
		}
		return false, nil, nil
	})
	core.Resources[0].APIResources = []metav1.APIResource{{Name: "configmaps"}}
}

func TestGetAndList(t *testing.T) {
	b := newFixture(t, func(*Config, *fake.Clientset) {})
	for _, name := range []string{"a", "b"} {
		require.NoError(t, b.GetIndexer().Add(configMap(name)))
	}
	got := Get[*corev1.ConfigMap](b, types.NamespacedName{Namespace: "default", Name: "a"})
	assert.True(t, got != nil && got.Name == "a", "Get: %v", got)
	got = Get[*corev1.ConfigMap](b, types.NamespacedName{Namespace: "default", Name: "c"})
	assert.Nil(t, got, "Get of an object that does not exist: %v", got)
	if got := List[*corev1.ConfigMap](b, "app", "vllm"); len(got) != 2 {
		t.Errorf("List: %v", got)
	}
	if got := List[*corev1.ConfigMap](b, "app", "other"); len(got) != 0 {
		t.Errorf("List of a value that no object has: %v", got)
	}
}

func TestOnChange(t *testing.T) {
	var before, after *corev1.ConfigMap
	h := OnChange(func(b, a *corev1.ConfigMap) { before, after = b, a })
	a, b := configMap("a"), configMap("b")
	for _, tt := range []struct {
		name                  string
		call                  func()
		wantBefore, wantAfter *corev1.ConfigMap
	}{
		{"add", func() { h.OnAdd(a, false) }, nil, a},
		{"update", func() { h.OnUpdate(a, b) }, a, b},
		{"delete", func() { h.OnDelete(a) }, a, nil},
		{"deletion that the watch missed", func() { h.OnDelete(cache.DeletedFinalStateUnknown{Obj: b}) }, b, nil},
		{"an object of another type", func() { h.OnAdd(&corev1.Pod{}, false) }, nil, nil},
	} {
		before, after = nil, nil
		tt.call()
		assert.True(t, before == tt.wantBefore && after == tt.wantAfter, "%s: %v to %v", tt.name, before, after)
	}
}

// Only objects of the type are transformed and indexed: an informer may transform an object twice.
func TestTypedConfiguration(t *testing.T) {
	transform := Transform(func(c *corev1.ConfigMap) *corev1.Secret { return &corev1.Secret{Type: corev1.SecretType(c.Name)} })
	index := Index(func(s *corev1.Secret) []string { return []string{string(s.Type)} })
	keys, err := index(configMap("a"))
	assert.True(t, err == nil && len(keys) == 0, "an object of another type is indexed as %q, %v", keys, err)
	stored, err := transform(configMap("a"))
	keys, bad := index(stored)
	assert.True(t, err == nil && bad == nil && slices.Equal(keys, []string{"a"}), "%v, %v is indexed as %q, %v", stored, err, keys, bad)
	again, err := transform(stored)
	assert.True(t, err == nil && again == stored, "transformed twice: %v, %v", again, err)
}

// An object that is moved to another key changes both.
func TestOnKeys(t *testing.T) {
	var keys []string
	h := OnKeys(func(c *corev1.ConfigMap) string { return c.Name }, func(key string) { keys = append(keys, key) })
	h.OnAdd(configMap("a"), false)
	h.OnUpdate(configMap("a"), configMap("a"))
	h.OnUpdate(configMap("a"), configMap("b"))
	h.OnDelete(configMap("b"))
	want := []string{"a", "a", "a", "b", "b"}
	assert.True(t, slices.Equal(keys, want), "got %q, want %q", keys, want)
}

// A filled cache can be read whatever happens to its watch, so nothing changes for those who depend on it: that may be every
// workload.
func TestWatchErrorOfFilledCache(t *testing.T) {
	b := newFixture(t, func(*Config, *fake.Clientset) {})
	b.Start()
	b.run()
	<-b.changed // once it is filled
	b.setObstacle(false, errors.New("watch ends"))
	select {
	case <-b.changed:
		t.Errorf("Changed is called, and Err is %v as before", b.Err())
	default:
	}
}
