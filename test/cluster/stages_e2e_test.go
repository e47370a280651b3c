// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package cluster

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// A late request of KWOK for an earlier pod of the same name changes nothing.
//
// Proves: The test cluster ends all its processes; a late request of KWOK changes no live pod.
func TestLateRequestsOfKWOK(t *testing.T) {
	c := Shared(t)
	namespace := c.Namespace(t)
	config, err := clientcmd.BuildConfigFromFlags("", c.path(KWOK+".kubeconfig"))
	require.NoError(t, err)
	late := kubernetes.NewForConfigOrDie(config)
	pods := c.kube.CoreV1().Pods(namespace)
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "example.com/server:v1"}}}}
	pod.Name = "next"
	_, err = pods.Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the pod runs", func(ctx context.Context) error {
		now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err == nil && now.Status.Phase != corev1.PodRunning {
			err = errors.New("its phase is " + string(now.Status.Phase))
		}
		return err
	})
	now := int64(0)
	err = late.CoreV1().Pods(namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	assert.True(t, apierrors.IsInvalid(err), "deleting a live pod: %v, want Invalid", err)
	_, err = late.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.MergePatchType, []byte(`{"status":{"phase":"Succeeded"}}`),
		metav1.PatchOptions{}, "status")
	assert.True(t, apierrors.IsInvalid(err), "ending a live pod: %v, want Invalid", err)
}
