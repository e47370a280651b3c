// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels of the nodes, beside the well-known ones for host name, zone and region.
const (
	// LabelRack has the same value on four nodes. Use it as the topology of LWS's exclusive placement.
	LabelRack = "test.lockstep.dev/rack"
)

const (
	nodesPerRack = 4
	zones        = 2
)

// createNodes creates missing nodes. KWOK makes them Ready.
func createNodes(ctx context.Context, c *Cluster) error {
	for i := range c.options.nodes {
		_, err := c.kube.CoreV1().Nodes().Create(ctx, node(i, c.options.resources), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create node %d: %w", i, err)
		}
	}
	return nil
}

// node returns the i-th node: node-0, node-1 and so on. A rack is in one zone.
func node(i int, resources corev1.ResourceList) *corev1.Node {
	name := fmt.Sprintf("node-%d", i)
	rack := i / nodesPerRack
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: name,
			Labels: map[string]string{
				corev1.LabelHostname:       name,
				corev1.LabelOSStable:       "linux",
				corev1.LabelArchStable:     "amd64",
				corev1.LabelTopologyRegion: "region",
				corev1.LabelTopologyZone:   fmt.Sprintf("zone-%d", rack%zones),
				LabelRack:                  fmt.Sprintf("rack-%d", rack),
			},
		},
		Status: corev1.NodeStatus{
			Capacity:    resources,
			Allocatable: resources,
			Addresses:   []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
		},
	}
}
