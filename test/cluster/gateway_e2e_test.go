// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// routes are objects of the kinds of WithGatewayAPI, each with a field that only newer CRDs have or require.
const routes = `apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: model}
spec: {rules: [{name: all, backendRefs: [{name: model, port: 80, weight: 1}]}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: model}
spec: {rules: [{name: all, backendRefs: [{name: model, port: 80}]}]}
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: model}
spec:
  targetPorts: [{number: 8000}]
  selector: {matchLabels: {app: model}}
  endpointPickerRef: {name: picker, port: {number: 9002}}
`

func TestGatewayAPI(t *testing.T) {
	c := startSmall(t, WithGatewayAPI())
	if err := c.Apply(t.Context(), c.Namespace(t), []byte(routes)); err != nil {
		t.Error(err)
	}
	if got := c.GatewayAddress(); got != "" {
		t.Errorf("kinds that are not served: %q", got)
	}
}

// No two pods ever have the same address, also after deletions and restarts of KWOK.
func TestPodAddresses(t *testing.T) {
	c := startSmall(t)
	all, pods := netip.MustParsePrefix(PodCIDR), map[string]string{}
	for round := range 2 {
		in := c.Namespace(t)
		for i := range 30 {
			newPod(t, c, in, fmt.Sprint("p", i), nil)
		}
		eventually(t, "all pods have addresses", func(ctx context.Context) error {
			list, err := c.kube.CoreV1().Pods(in).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, pod := range list.Items {
				address, err := netip.ParseAddr(pod.Status.PodIP)
				if err != nil {
					return err
				}
				if other, taken := pods[pod.Status.PodIP]; taken && other != string(pod.UID) || !all.Contains(address) {
					t.Fatalf("pod %s has address %s, as had %q", pod.Name, address, other)
				}
				pods[pod.Status.PodIP] = string(pod.UID)
			}
			return nil
		})
		if err := c.kube.CoreV1().Pods(in).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if round > 0 {
			break
		}
		if err := c.StopComponent(t.Context(), KWOK); err != nil {
			t.Fatal(err)
		}
		if err := c.StartComponent(t.Context(), KWOK); err != nil {
			t.Fatal(err)
		}
	}
}

// A pod in the host network has its node's address.
func TestHostNetworkAddress(t *testing.T) {
	c := Shared(t)
	pod, err := c.kube.CoreV1().Pods(c.Namespace(t)).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "host"},
		Spec:       corev1.PodSpec{HostNetwork: true, Containers: []corev1.Container{{Name: "server", Image: "example.com/server:v1"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watchPod(t, c, pod, func(p *corev1.Pod) bool { pod = p; return ready(p) })
	if pod.Status.PodIP != "127.0.0.1" {
		t.Errorf("address %s", pod.Status.PodIP)
	}
}
