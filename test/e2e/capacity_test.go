// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

// gpus sets a GPU limit on every container.
func gpus(n string) func(*lws.LeaderWorkerSet) {
	return func(w *lws.LeaderWorkerSet) {
		for _, t := range templates(w) {
			for i := range t.Spec.Containers {
				t.Spec.Containers[i].Resources.Limits = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse(n)}
			}
		}
	}
}

// limitGPUs creates a ResourceQuota of GPUs and returns once its status has this usage.
func (e *env) limitGPUs(hard, used string) {
	e.t.Helper()
	const gpu = "requests.nvidia.com/gpu"
	quotas := e.kube.CoreV1().ResourceQuotas(e.namespace)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "gpus"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{gpu: resource.MustParse(hard)}},
	}
	suite.Create(e.t, quotas, quota)
	e.eventually("the quota's usage is counted", func(ctx context.Context) error {
		q, err := quotas.Get(ctx, "gpus", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := q.Status.Used[gpu]; got.String() != used {
			return fmt.Errorf("%s of %s are used", got.String(), hard)
		}
		return nil
	})
}

// warning returns the message of the warning with this code, or "".
func warning(r *pb.InitializeResponse, code string) string {
	for _, w := range r.GetWarnings() {
		if w.GetCode() == code {
			return w.GetMessage()
		}
	}
	return ""
}

func (w *workload) mustContain(text string, words ...string) {
	w.t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			w.t.Errorf("%q does not contain %q", text, word)
		}
	}
}

// A blue-green release that exceeds a quota is refused, unless the policy forces it.
//
// Proves: Quotas and extra capacity are reported before they are used.
func TestStylesQuota(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	w := e.adopt(model("model", 2, 2, gpus("8")))
	w.edit(image("v2"))
	e.limitGPUs("48", "32")
	p := &pb.ReleasePolicy{Style: pb.Style_STYLE_BLUE_GREEN, Batches: []string{"100%"}}
	if _, err := w.tryInitialize("r1", p); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_QUOTA_EXCEEDED {
		t.Fatalf("Initialize: %v", err)
	} else {
		w.mustContain(err.Error(), "ResourceQuota", "/gpus", "needs 32", "16 is left", "policy.blue_green.force")
	}
	w.mustBeIdle()
	p.BlueGreen = &pb.BlueGreenPolicy{Force: true}
	w.mustContain(warning(w.initialize("r1", p), "QuotaExceeded"), "ResourceQuota", "/gpus")
	w.finalize("r1", rollback)
	w.mustBeIdle()
}
