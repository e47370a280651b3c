// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/suite"
)

const invalid = pb.ErrorReason_ERROR_REASON_INVALID_REQUEST

// Invalid requests are refused with the field's name and write nothing.
//
// Proves (test): SPEC rule 9 and errors: UNIMPLEMENTED; invalid requests name the field.
func TestCanaryInvalidRequests(t *testing.T) {
	t.Parallel()
	w := newEnv(t).deploy(model("model", 2, 1))
	before := w.get().ResourceVersion
	for _, test := range []struct {
		name, field string
		change      func(*pb.InitializeRequest)
	}{
		{"no workload", "workload.name", func(r *pb.InitializeRequest) { r.Workload.Name = "" }},
		{"kind", "workload.kind", func(r *pb.InitializeRequest) { r.Workload.Kind = "Deployment" }},
		{"no id", "release_id", func(r *pb.InitializeRequest) { r.ReleaseId = "" }},
		{"no policy", "policy", func(r *pb.InitializeRequest) { r.Policy = nil }},
		{"unknown style", "policy.style", func(r *pb.InitializeRequest) { r.Policy.Style = 99 }},
		{"decreasing", "policy.batches[1]", func(r *pb.InitializeRequest) { r.Policy.Batches = []string{"50%", "25%"} }},
		{"deadline", "policy.progress_deadline", func(r *pb.InitializeRequest) { r.Policy.ProgressDeadline = seconds(-1) }},
		{"wait", "wait", func(r *pb.InitializeRequest) { r.Wait = seconds(-1) }},
		{"owner", "owner", func(r *pb.InitializeRequest) { r.Owner = strings.Repeat("a", 300) }},
		{"label", "policy.canary_leader_metadata.labels", func(r *pb.InitializeRequest) {
			r.Policy.CanaryLeaderMetadata = &pb.PodMetadata{Labels: map[string]string{"a b": "c"}}
		}},
		{"label that the driver's operator does not allow", "policy.canary_leader_metadata.labels", func(r *pb.InitializeRequest) {
			r.Policy.CanaryLeaderMetadata = &pb.PodMetadata{Labels: map[string]string{"example.com/track": "canary"}}
		}},
		{"reserved label", "policy.canary_leader_metadata", func(r *pb.InitializeRequest) {
			r.Policy.CanaryLeaderMetadata = &pb.PodMetadata{Labels: map[string]string{lws.SetNameLabelKey: "other"}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			request := &pb.InitializeRequest{Workload: w.ref(), ReleaseId: "r1", Policy: quarters()}
			test.change(request)
			_, err := w.driver.Initialize(t.Context(), request)
			mustFail(t, err, invalid)
			for _, v := range drivererr.Violations(err) {
				if v.Field == test.field && v.Description != "" {
					return
				}
			}
			t.Errorf("no violation of %s: %v", test.field, drivererr.Violations(err))
		})
	}
	w.edit(image("v1")) // unchanged: no write
	if now := w.get().ResourceVersion; now != before {
		t.Errorf("a refused request wrote: resourceVersion %s, was %s", now, before)
	}
}

// Requests that the state of the cluster does not allow are refused with a reason and details, and write nothing.
//
// Proves: SPEC errors: the cluster's refusals have a reason and write nothing.
func TestCanaryRefused(t *testing.T) {
	t.Parallel()
	e := newEnv(t)

	t.Run("another namespace", func(t *testing.T) {
		_, err := e.driver.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{
			Workload: &pb.WorkloadRef{Namespace: "default", Name: "model"},
		})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND, e.namespace)
	})
	t.Run("releases", func(t *testing.T) {
		w := e.in(t).adopt(model("releases", 2, 1))
		w.edit(image("v2"))
		c := w.initialize("r1", quarters()).GetContext()
		_, err := w.tryInitialize("r2", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "r1", "e2e/")
		if got := drivererr.Metadata(err)["release_id"]; got != "r1" {
			t.Errorf("metadata names release %q", got)
		}
		canary := w.env.in(t).existing(c.GetCanaryWorkload())
		_, err = canary.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, "releases")
		_, err = canary.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: canary.ref()})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN)
		w.finalize("r1", rollback)
		w.mustBeIdle()
	})
	t.Run("foreign owner", func(t *testing.T) {
		owner := suite.Create(t, e.kube.CoreV1().ConfigMaps(e.namespace), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}})
		w := e.in(t).deploy(model("owned", 2, 1, func(s *lws.LeaderWorkerSet) {
			s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID, Controller: ptr.To(true)}}
		}))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER, "ConfigMap", "owner")
		_, err = w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_FOREIGN_OWNER)
		w.mustBeUntouched()
	})
	t.Run("long name", func(t *testing.T) {
		w := e.in(t).deploy(model(strings.Repeat("n", 48), 2, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TOO_LONG, "48", "43", "63", "controller-revision-hash")
		w.mustBeUntouched()
	})
	t.Run("longest name", func(t *testing.T) {
		w := e.in(t).adopt(model(strings.Repeat("m", 43), 2, 2))
		w.edit(image("v2"))
		w.release("r1", policy("100%"))
	})
	t.Run("no service", func(t *testing.T) {
		w := e.in(t).deploy(model("service", 2, 1))
		p := quarters()
		p.Traffic = &pb.TrafficPolicy{StableService: "nothing-there", Ingresses: []string{"model"}}
		_, err := w.tryInitialize("r1", p)
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, "nothing-there")
		w.mustBeUntouched()
	})
	t.Run("mixed revisions", func(t *testing.T) {
		w := e.in(t).deploy(model("mixed", 4, 1, rolling("1", "0", 2)))
		w.edit(image("v2"))
		w.awaitObject("LWS has updated half of the groups", func() bool {
			s := w.get()
			return s.Status.ObservedGeneration == s.Generation && s.Status.UpdatedReplicas == 2 && s.Status.ReadyReplicas == 4
		})
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_MIXED_REVISIONS)
		w.mustBeUntouched()
		r, err := w.driver.Adopt(t.Context(), &pb.AdoptRequest{Workload: w.ref()})
		if err != nil || len(r.GetWarnings()) != 1 || r.GetWarnings()[0].GetCode() != "AdoptedDuringRoll" {
			t.Errorf("Adopt: %v, %v", r, err)
		}
	})
	t.Run("name taken", func(t *testing.T) {
		w := e.in(t).adopt(model("taken", 2, 1))
		w.edit(image("v2"))
		c := w.await("the new revision is known", func(c *pb.BatchContext) bool { return c.GetReason() == "NewRevisionWaits" })
		name := fmt.Sprintf("taken-%.6s", c.GetUpdateRevision())
		w.env.in(t).deploy(model(name, 1, 1))
		_, err := w.tryInitialize("r1", quarters())
		mustFail(t, err, pb.ErrorReason_ERROR_REASON_NAME_TAKEN, name)
		w.mustBeIdle()
	})
}

// mustBeUntouched fails if the driver has written to the workload.
func (w *workload) mustBeUntouched() {
	w.t.Helper()
	s := w.get()
	if s.Annotations[recordAnnotation] != "" || isHold(s.Spec.RolloutStrategy.RollingUpdateConfiguration) || len(s.Finalizers) > 0 {
		w.t.Errorf("the workload was touched: %s", asJSON(s.ObjectMeta))
	}
	if c := w.context(); c.GetState() != pb.State_STATE_UNMANAGED {
		w.t.Errorf("not unmanaged: %s", show(c))
	}
}

// GetDriverInfo reports the driver's name, version, kinds, styles and capabilities.
//
// Proves (test): SPEC rule 9 and errors: UNIMPLEMENTED; invalid requests name the field.
func TestCanaryCapabilities(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	info := e.driver.Info()
	if info.GetName() != "lws.lockstep.dev" || info.GetVersion() == "" || len(info.GetKinds()) != 2 || len(info.GetStyles()) == 0 {
		t.Errorf("GetDriverInfo: %v", info)
	}
	for number, name := range pb.Capability_name {
		if c := pb.Capability(number); c != pb.Capability_CAPABILITY_UNSPECIFIED && !e.driver.Has(c) {
			t.Errorf("it does not serve %s", name)
		}
	}
}
