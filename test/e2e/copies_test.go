// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// LWS v0.10.0 copies labels and annotations of a LeaderWorkerSet, including the record, to its StatefulSets. That costs at most one
// write of the leader StatefulSet per write of the record, and none of existing worker StatefulSets: nothing grows with the groups.
//
// Proves (smoke): LWS v0.10.0 copies the record to StatefulSets: writes do not grow with the groups.
func TestCanaryRecordCopies(t *testing.T) {
	t.Parallel()
	// Adopt, begin, roll back, end. The driver may observe the new template when it adopts, and save a write.
	const most = 4
	for _, groups := range []int32{2, 8} {
		t.Run(fmt.Sprintf("%d-groups", groups), func(t *testing.T) {
			e := newEnv(t)
			w := e.deploy(model("model", groups, 2))
			copies := e.countCopies("model")
			if _, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()}); err != nil {
				t.Fatal(err)
			}
			w.edit(image("v2"))
			w.initialize("r1", policy("1", "2"))
			w.upgrade("r1", 0)
			w.upgrade("r1", 1)
			w.finalize("r1", rollback)
			writes := 0
			for _, write := range e.writes() {
				if write == "patch leaderworkersets/model" {
					writes++
				}
			}
			leader, workers := copies()
			t.Logf("LWS %s, %d groups: %d writes of the record, copied %d times to the leader StatefulSet, %d times to worker StatefulSets",
				e.cluster.Versions().LWS, groups, writes, leader, workers)
			if writes == 0 || writes > most {
				t.Errorf("the driver wrote the record %d times, want 1 to %d for any number of groups", writes, most)
			}
			if leader > writes || workers > 0 {
				t.Errorf("want at most %d copies to the leader StatefulSet and none to worker StatefulSets, got %d and %d", writes, leader, workers)
			}
		})
	}
}

// lockstepKeys returns Lockstep's labels or annotations.
func lockstepKeys(all map[string]string) map[string]string {
	copied := maps.Clone(all)
	maps.DeleteFunc(copied, func(key, _ string) bool { return !strings.HasPrefix(key, "lockstep.dev/") })
	return copied
}

// countCopies starts counting changes of Lockstep's labels and annotations on a workload's StatefulSets. The returned function
// stops it and returns the counts.
func (e *env) countCopies(name string) func() (leader, workers int) {
	e.t.Helper()
	sets := e.kube.AppsV1().StatefulSets(e.namespace)
	list := suite.List(e.t, sets, metav1.ListOptions{})
	last := map[string]*appsv1.StatefulSet{}
	for i := range list.Items {
		last[list.Items[i].Name] = &list.Items[i]
	}
	if last[name] == nil || last[name+"-0"] == nil {
		e.t.Fatalf("%s lacks a leader or a worker StatefulSet", name)
	}
	ctx, cancel := context.WithTimeout(e.t.Context(), 10*time.Minute)
	w, err := sets.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		e.t.Fatal(err)
	}
	leader, workers := 0, 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			now, ok := event.Object.(*appsv1.StatefulSet)
			if !ok || last[now.Name] == nil {
				continue // created meanwhile, for the canary
			}
			before := last[now.Name]
			last[now.Name] = now
			switch {
			case maps.Equal(lockstepKeys(before.Annotations), lockstepKeys(now.Annotations)) && maps.Equal(lockstepKeys(before.Labels), lockstepKeys(now.Labels)):
			case now.Name == name:
				leader++
			case strings.HasPrefix(now.Name, name+"-"):
				workers++
			}
		}
	}()
	return func() (int, int) {
		w.Stop()
		cancel()
		<-done
		return leader, workers
	}
}
