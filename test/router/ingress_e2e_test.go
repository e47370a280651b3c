// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic"
)

var (
	userIngress   = traffic.Key{Kind: traffic.KindIngress, Name: "llm"}
	canaryIngress = traffic.Key{Kind: traffic.KindIngress, Name: "llm-canary"}
)

const ingressManifest = `apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: llm
  labels: {team: serving}
  annotations: {owner: ml, cert-manager.io/cluster-issuer: letsencrypt}
spec:
  ingressClassName: nginx
  tls: [{hosts: [llm.example.com], secretName: llm-tls}]
  rules:
  - host: llm.example.com
    http:
      paths:
      - {path: /v1, pathType: Prefix, backend: {service: {name: vllm, port: {number: 80}}}}
      - {path: /audio, pathType: Prefix, backend: {service: {name: whisper, port: {number: 80}}}}
`

// newIngressEnv returns a release with an Ingress only.
func newIngressEnv(t *testing.T) *env {
	t.Helper()
	e := newEnv(t, nil)
	e.setup.Policy.Routes, e.setup.Policy.Ingresses = nil, []string{"llm"}
	e.apply("argocd", ingressManifest)
	return e
}

// TestIngressRelease runs a release with an Ingress while tools and users change the objects.
//
// Proves (test): InferencePool and Ingress objects.
func TestIngressRelease(t *testing.T) {
	e := newIngressEnv(t)
	e.pod("vllm-0", "vllm", "0")
	if err := e.router.Check(t.Context(), e.setup); err != nil {
		t.Fatal(err)
	}
	service := traffic.Key{Kind: traffic.KindService, Name: "vllm"}
	user := map[traffic.Key]*unstructured.Unstructured{service: e.get(service)}
	ingress := e.get(userIngress)

	prepared := traffic.Desired{Prepared: true}
	if diff := cmp.Diff([]string{"patch Service vllm", "create Service vllm-canary"}, e.applyAll(prepared)); diff != "" {
		t.Fatalf("prepare (-want +got):\n%s", diff)
	}
	e.view(prepared, "")
	e.pod("vllm-abc123-0", "vllm-abc123", "0")
	e.endpoint()
	d := traffic.Desired{Weight: 25}
	if diff := cmp.Diff([]string{"create Ingress llm-canary"}, e.applyAll(d)); diff != "" {
		t.Fatalf("up (-want +got):\n%s", diff)
	}
	if v := e.view(d, ""); v.Weight != 25 || v.StableEndpoints != 1 {
		t.Errorf("view %+v", v)
	}
	e.canaryIngress(map[string]string{"canary": "true", "canary-weight": "25"})

	d = traffic.Desired{Weight: 60}
	if diff := cmp.Diff([]string{"patch Ingress llm-canary"}, e.applyAll(d)); diff != "" {
		t.Fatalf("more (-want +got):\n%s", diff)
	}
	e.canaryIngress(map[string]string{"canary": "true", "canary-weight": "60"})
	if _, _, err := e.write(t.Context(), traffic.Desired{Weight: 60, Mirror: 5}); drivererr.Reason(err) != pb.ErrorReason_ERROR_REASON_UNSUPPORTED {
		t.Errorf("mirror: %v", err)
	}

	t.Run("manifests applied again", func(t *testing.T) { e.in(t).reapplyIngress(d) })

	if diff := cmp.Diff([]string{"delete Ingress llm-canary"}, e.applyAll(prepared)); diff != "" {
		t.Errorf("down (-want +got):\n%s", diff)
	}
	if v := e.view(prepared, ""); v.Weight != 0 {
		t.Errorf("view %+v", v)
	}
	if diff := cmp.Diff([]string{"delete Service vllm-canary", "patch Service vllm", "patch Service vllm"}, e.applyAll(traffic.Desired{})); diff != "" {
		t.Fatalf("end (-want +got):\n%s", diff)
	}
	e.asBefore(user)
	if diff := cmp.Diff(ingress.Object["spec"], e.get(userIngress).Object["spec"]); diff != "" {
		t.Errorf("the user's Ingress was changed:\n%s", diff)
	}
	for _, entry := range e.get(userIngress).GetManagedFields() {
		if entry.Manager == traffic.FieldManager {
			t.Errorf("the user's Ingress was written: %s", entry.FieldsV1)
		}
	}
	if _, err := e.client(traffic.KindIngress).Get(t.Context(), canaryIngress.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the canary Ingress is left: %v", err)
	}
}

// canaryIngress checks the canary's Ingress and its canary annotations.
func (e *env) canaryIngress(convention map[string]string) {
	e.Helper()
	got := e.get(canaryIngress)
	annotations := map[string]string{"owner": "ml"}
	for k, v := range convention {
		annotations[traffic.IngressPrefix+k] = v
	}
	if diff := cmp.Diff(annotations, got.GetAnnotations()); diff != "" {
		e.Errorf("annotations (-want +got):\n%s", diff)
	}
	text := fmt.Sprint(got.Object["spec"])
	if !strings.Contains(text, "vllm-canary") || strings.Contains(text, "whisper") || !strings.Contains(text, "llm-tls") || !strings.Contains(text, "ingressClassName:nginx") {
		e.Errorf("spec %v", text)
	}
	if owner := metav1.GetControllerOf(got); owner == nil || owner.UID != e.setup.Owner.UID {
		e.Errorf("it is owned by %v", owner)
	}
}

// reapplyIngress applies the user's manifests during the release: the canary's Ingress is another object and is kept.
func (e *env) reapplyIngress(d traffic.Desired) {
	if err := e.applyError("argocd", ingressManifest, false); err != nil {
		e.Errorf("server-side apply without force: %v", err)
	}
	if got := e.applyAll(d); got != nil {
		e.Errorf("wrote %v although nothing has changed", got)
	}
	e.apply("argocd", strings.Replace(ingressManifest, "path: /v1", "path: /v2", 1))
	e.view(d, traffic.ReasonWriting)
	// The old path is removed whatever the state of the canary, and with the last path the Ingress; the new path is added once
	// the canary can serve.
	want := []string{"delete Ingress llm-canary", "create Ingress llm-canary"}
	if diff := cmp.Diff(want, e.applyAll(d)); diff != "" {
		e.Errorf("the canary's follows the user's (-want +got):\n%s", diff)
	}
	e.apply("argocd", ingressManifest)
	e.view(d, traffic.ReasonWriting)
	e.applyAll(d)

	// The canary's Ingress is edited, then deleted.
	o := e.get(canaryIngress)
	o.SetAnnotations(map[string]string{"owner": "ml", traffic.IngressPrefix + "canary": "true", traffic.IngressPrefix + "canary-weight": "90"})
	if _, err := e.client(traffic.KindIngress).Update(e.Context(), o, metav1.UpdateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.view(d, traffic.ReasonWriting)
	e.applyAll(d)
	if err := e.client(traffic.KindIngress).Delete(e.Context(), canaryIngress.Name, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
	e.view(d, traffic.ReasonWriting)
	if diff := cmp.Diff([]string{"create Ingress llm-canary"}, e.applyAll(d)); diff != "" {
		e.Errorf("it is recreated (-want +got):\n%s", diff)
	}
	e.view(d, "")
}
