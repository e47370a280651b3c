// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwstest

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	lwsfake "sigs.k8s.io/lws/client-go/clientset/versioned/fake"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"
)

// NoRoutes returns a client of a cluster without routes.
func NoRoutes() dynamic.Interface { return dynamicfake.NewSimpleDynamicClient(runtime.NewScheme()) }

// ForbidWatches has watches refused as long as forbidden returns true.
func ForbidWatches(core *fake.Clientset, forbidden func() bool) {
	core.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		of := a.GetResource().GroupResource()
		return forbidden(), nil, apierrors.NewForbidden(of, "", fmt.Errorf("User %q cannot watch resource %q in API group %q", "driver", of.Resource, of.Group)) //nolint:staticcheck // The API server's text.
	})
}

// ErrorContains fails the test unless the error contains all words.
func ErrorContains(t testing.TB, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("error %v does not contain %q", err, word)
		}
	}
}

// Cluster is a cluster of fake clients.
type Cluster struct {
	Core    *fake.Clientset
	Sets    *lwsfake.Clientset
	Dynamic dynamic.Interface
}

// NewCluster returns a cluster with the workloads, and the objects of the other clients.
func NewCluster(t testing.TB, core *fake.Clientset, generic dynamic.Interface, workloads ...*lws.LeaderWorkerSet) *Cluster {
	t.Helper()
	c := &Cluster{Core: core, Sets: lwsfake.NewClientset(), Dynamic: generic}
	fakes.CopyWatched(&c.Core.Fake, &c.Sets.Fake)
	if routes, ok := generic.(*dynamicfake.FakeDynamicClient); ok {
		fakes.CopyWatched(&routes.Fake)
	}
	for _, w := range workloads {
		if err := c.Sets.Tracker().Add(w.DeepCopy()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// FailPatches has every patch of a LeaderWorkerSet return the error of f.
func (c *Cluster) FailPatches(f func() error) {
	fakes.React(&c.Sets.Fake, "patch", "leaderworkersets", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, f()
	})
}

// Writes returns the write requests for LeaderWorkerSets, such as "patch vllm".
func (c *Cluster) Writes() []string {
	var all []string
	for _, a := range c.Sets.Actions() {
		switch t := a.(type) {
		case clienttesting.PatchAction:
			all = append(all, "patch "+t.GetName())
		case clienttesting.DeleteAction:
			all = append(all, "delete "+t.GetName())
		case clienttesting.CreateAction:
			all = append(all, "create")
		}
	}
	return all
}

// UpdateCache puts an object into an informer's cache, as it is after the transform.
func UpdateCache(t testing.TB, informer cache.SharedIndexInformer, object any) {
	t.Helper()
	if err := informer.GetIndexer().Update(object); err != nil {
		t.Fatal(err)
	}
}

// Run runs a driver, or a part of one, until the test ends.
func Run(t testing.TB, run func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// ReplayDecisions returns a callback for the decisions of a driver or an engine. At the end of the test, each is replayed
// from its recording.
func ReplayDecisions(t testing.TB) func(plan.Observation, plan.Intent, plan.Decision, error) {
	t.Helper()
	var recording bytes.Buffer
	r := &replay.Recorder{To: &recording, Ended: func(err error) { t.Error(err) }}
	t.Cleanup(func() {
		err := replay.Read(&recording, func(line int, e replay.Entry) error {
			diff, err := e.Replay()
			if diff != "" {
				t.Errorf("replayed decision %d differs:\n%s", line, diff)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
	return r.Record
}

// Decide returns the decision about an observation without a request.
func Decide(t testing.TB, o plan.Observation) plan.Decision {
	t.Helper()
	d, err := plan.Decide(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
