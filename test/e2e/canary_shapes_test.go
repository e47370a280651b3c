// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// release runs a whole release with the given policy, to the promotion.
func (w *workload) release(id string, p *pb.ReleasePolicy) {
	w.t.Helper()
	w.initialize(id, p)
	for b := range p.GetBatches() {
		if c := w.upgrade(id, int32(b)).GetContext(); c.GetState() != pb.State_STATE_READY {
			w.t.Fatalf("batch %d: %s", b, show(c))
		}
	}
	if c := w.finalize(id, promote).GetContext(); c.GetState() != pb.State_STATE_COMPLETED {
		w.t.Errorf("after the promotion: %s", show(c))
	}
	w.mustBeIdle()
}

func leaderTemplate(w *lws.LeaderWorkerSet) {
	t := w.Spec.LeaderWorkerTemplate.WorkerTemplate.DeepCopy()
	metav1.SetMetaDataLabel(&t.ObjectMeta, "part", "leader")
	w.Spec.LeaderWorkerTemplate.LeaderTemplate = t
}

// A workload without groups has nothing to release, and is held like any other.
//
// Proves: Scaling in each style; no groups at all.
func TestCanaryNoReplicas(t *testing.T) {
	t.Parallel()
	w := newEnv(t).adopt(model("model", 0, 2))
	w.edit(image("v2"))
	r := w.initialize("r1", quarters())
	if r.GetContext().GetState() != pb.State_STATE_NOTHING_TO_RELEASE || len(r.GetWarnings()) == 0 {
		t.Errorf("Initialize: %v", r)
	}
	if c := w.upgrade("r1", 2).GetContext(); c.GetState() != pb.State_STATE_NOTHING_TO_RELEASE {
		t.Errorf("UpgradeBatch: %s", show(c))
	}
	w.finalize("r1", promote)
	w.mustBeIdle()
	// Before that, new groups would get the former revision.
	w.awaitObject("the leader StatefulSet has the new template as its current revision", func() bool {
		s, err := w.kube.AppsV1().StatefulSets(w.namespace).Get(t.Context(), w.name, metav1.GetOptions{})
		return err == nil && s.Spec.Template.Spec.Containers[0].Image == "example.com/model:v2" &&
			s.Status.ObservedGeneration == s.Generation && s.Status.CurrentRevision == s.Status.UpdateRevision
	})
	w.scale(2)
	w.awaitReady()
	w.mustRun("v2")
}

// The policy's metadata is set on the canary's leaders only, if the driver's operator allows its keys.
//
// Proves: Labels of batches; leader metadata; Disown after a scale-down.
func TestCanaryLeaderMetadata(t *testing.T) {
	t.Parallel()
	e := newEnvIn(t, cluster.Shared(t))
	e.driver = driver.Prepare(t, driver.Kubeconfig(t, e.cluster), e.namespace)
	e.driver.Args = []string{"--canary-metadata-prefix", "track", "--canary-metadata-prefix", "example.com/"}
	e.driver.Restart()
	for _, object := range []*lws.LeaderWorkerSet{model("plain", 2, 2), model("with-leader", 2, 2, leaderTemplate)} {
		t.Run(object.Name, func(t *testing.T) {
			w := e.in(t).adopt(object)
			w.edit(image("v2"))
			p := policy("50%", "100%")
			p.CanaryLeaderMetadata = &pb.PodMetadata{
				Labels: map[string]string{"track": "canary"}, Annotations: map[string]string{"example.com/scrape": "yes"},
			}
			w.initialize("r1", p)
			w.upgrade("r1", 0)
			c := w.upgrade("r1", 1).GetContext()
			if c.GetUpdatedReady() != 2 {
				t.Errorf("batch 1: %s", show(c))
			}
			withMetadata := func(set string) (leaders, workers int) {
				for _, pod := range w.podsOf(set) {
					if pod.Labels["track"] != "canary" && pod.Annotations["example.com/scrape"] != "yes" {
						continue
					}
					if pod.Labels[lws.WorkerIndexLabelKey] == "0" {
						leaders++
					} else {
						workers++
					}
				}
				return leaders, workers
			}
			if got := fmt.Sprint(withMetadata(c.GetCanaryWorkload())); got != "2 0" {
				t.Errorf("leaders and workers of the canary with the metadata: %s", got)
			}
			w.finalize("r1", promote)
			if got := fmt.Sprint(withMetadata(w.name)); got != "0 0" {
				t.Errorf("leaders and workers of the workload with the metadata: %s", got)
			}
			w.mustBeIdle()
			w.mustRun("v2")
		})
	}
}
