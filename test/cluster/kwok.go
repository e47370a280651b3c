// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations on a pod (for LWS: on the leader or worker template) that control its behavior. They may be changed on a live pod.
// Durations are as in Go, e.g. "1500ms".
const (
	// AnnotationStartup is how long the pod stays Pending once it is scheduled. The default is no time.
	AnnotationStartup = "test.lockstep.dev/startup"
	// AnnotationWarmup is how long it then runs without being ready, like a server that loads a model. The default is no time.
	AnnotationWarmup = "test.lockstep.dev/warmup"
	// AnnotationTermination is how long the pod is terminating. The default is no time.
	AnnotationTermination = "test.lockstep.dev/termination"
	// AnnotationBehavior is one of the Behavior constants. The default is a pod that becomes ready and stays so.
	AnnotationBehavior = "test.lockstep.dev/behavior"
	// AnnotationPeriod is how long a flapping pod stays ready or unready, and how long a crashing one runs. The default is 2s.
	AnnotationPeriod = "test.lockstep.dev/period"
)

// Values of AnnotationBehavior.
const (
	// BehaviorNeverReady runs without becoming ready.
	BehaviorNeverReady = "never-ready"
	// BehaviorCrash runs without becoming ready, exits with 1 and enters CrashLoopBackOff with restartCount 1, repeatedly.
	BehaviorCrash = "crash"
	// BehaviorImagePull stays Pending with reason ImagePullBackOff.
	BehaviorImagePull = "image-pull"
	// BehaviorFlap alternates between ready and unready.
	BehaviorFlap = "flap"
)

// PodCIDR has the addresses of all pods without hostNetwork. Addresses are not reused: the probability that two pods of a cluster,
// whether they still exist or not, have the same one is 1 in 8 million.
const PodCIDR = "10.128.0.0/9"

//go:embed stages/*.yaml
var stages embed.FS

// kwokPolicy has the API server refuse KWOK's late requests.
//
//go:embed kwok-policy.yaml
var kwokPolicy []byte

var kwokComponent = component{
	name: KWOK, module: kwokModule, program: "kwok",
	install: func(ctx context.Context, c *Cluster) error {
		if err := releaseNodes(ctx, c); err != nil {
			return err
		}
		return createNodes(ctx, c)
	},
	command: kwokCommand,
	ready:   nodesReady,
}

// releaseNodes deletes the leases of nodes, so that a restarted KWOK can take them at once. It has a new identity at each start, and
// would wait until the old leases expire.
func releaseNodes(ctx context.Context, c *Cluster) error {
	leases := c.kube.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if err := leases.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("release nodes: %w", err)
	}
	return nil
}

func kwokCommand(c *Cluster) (command, error) {
	args := []string{
		"--kubeconfig=" + c.path(KWOK+".kubeconfig"),
		"--manage-all-nodes=true",
		"--server-address=" + address(c.port.kwok),
		"--cidr=" + PodCIDR,
		"--node-ip=127.0.0.1",
		"--node-lease-duration-seconds=200",
	}
	files, err := fs.Glob(stages, "stages/*.yaml")
	if err != nil {
		return command{}, err
	}
	if err := os.MkdirAll(c.path("stages"), 0o700); err != nil {
		return command{}, err
	}
	for _, file := range files {
		content, err := stages.ReadFile(file)
		if err != nil {
			return command{}, err
		}
		path := c.path("stages", filepath.Base(file))
		if err := os.WriteFile(path, content, 0o600); err != nil {
			return command{}, err
		}
		args = append(args, "--config="+path)
	}
	return command{args: args}, nil
}

// nodesReady checks that KWOK has made every node ready.
func nodesReady(ctx context.Context, c *Cluster) error {
	nodes, err := c.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ready := 0
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				ready++
			}
		}
	}
	if ready < c.options.nodes {
		return fmt.Errorf("%d of %d nodes are ready", ready, c.options.nodes)
	}
	return nil
}

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
