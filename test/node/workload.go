// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
)

// Options returns the options of a cluster with this many nodes, and of the gateway in front of them.
func Options(nodes int) []cluster.Option {
	return []cluster.Option{cluster.WithKubelets(nodes), cluster.WithTraefik()}
}

// Push builds the model server and pushes its image, the same one with several tags. [Image] has their references.
func Push(ctx context.Context, c *cluster.Cluster, tags ...string) error {
	program := filepath.Join(c.Dir(), "modelserver")
	if err := cluster.BuildProgram(ctx, "github.com/lockstep-rollouts/lockstep/test/modelserver", program); err != nil {
		return err
	}
	for _, tag := range tags {
		if _, err := c.PushProgram(ctx, "model:"+tag, program); err != nil {
			return err
		}
	}
	return nil
}

// Image returns the reference of the model server with a tag.
func Image(c *cluster.Cluster, tag string) string { return c.Image("model:" + tag) }

// Workload returns a LeaderWorkerSet with groups of two. Its pods have the label app with its name, and the label role.
func Workload(name string, groups int32, image string) (*lws.LeaderWorkerSet, error) {
	template := func(role string) (corev1.PodTemplateSpec, error) {
		var t corev1.PodTemplateSpec
		if err := yaml.UnmarshalStrict([]byte(podTemplate), &t); err != nil {
			return t, fmt.Errorf("parse the pod template: %w", err)
		}
		t.Labels = map[string]string{"app": name, "role": role}
		t.Spec.Containers[0].Image = image
		return t, nil
	}
	leader, err := template("leader")
	if err != nil {
		return nil, err
	}
	worker, err := template("worker")
	return &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: lws.LeaderWorkerSetSpec{
			Replicas: ptr.To(groups), StartupPolicy: lws.LeaderCreatedStartupPolicy,
			RolloutStrategy: lws.RolloutStrategy{Type: lws.RollingUpdateStrategyType},
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{
				Size: ptr.To[int32](2), RestartPolicy: lws.RecreateGroupOnPodRestart, LeaderTemplate: &leader, WorkerTemplate: worker,
			},
		},
	}, err
}

// podTemplate has a preStop hook that outlasts the gateway's update, and a grace period that outlasts the longest request. Probes wait so
// long that no container is killed because the machine is busy.
const podTemplate = `
spec:
  terminationGracePeriodSeconds: 20
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: server
    ports: [{name: http, containerPort: 8080}]
    env:
    - {name: LOAD, value: 1s}
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: WORKLOAD, valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/name']"}}}
    - {name: REVISION, valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/template-revision-hash']"}}}
    - {name: GROUP, valueFrom: {fieldRef: {fieldPath: "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']"}}}
    resources: {requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}}
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1, failureThreshold: 120}
    readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
    livenessProbe: {httpGet: {path: /metrics, port: http}, periodSeconds: 2, timeoutSeconds: 10, failureThreshold: 3}
    lifecycle: {preStop: {sleep: {seconds: 4}}}
`
