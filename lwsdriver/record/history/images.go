// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package history

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
)

// Images returns the images of a template as "container=image", or "role/container=image" of one with roles: the leader's first, containers
// before init containers, without duplicates.
func Images(t record.Template) []string {
	var all []string
	for _, role := range t.Roles {
		for _, image := range Images(role.Spec) {
			all = append(all, role.Name+"/"+image)
		}
	}
	pods := []corev1.PodSpec{t.LeaderWorkerTemplate.WorkerTemplate.Spec}
	if leader := t.LeaderWorkerTemplate.LeaderTemplate; leader != nil {
		pods = slices.Insert(pods, 0, leader.Spec)
	}
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Containers, pod.InitContainers) {
			if image := c.Name + "=" + c.Image; !slices.Contains(all, image) {
				all = append(all, image)
			}
		}
	}
	return all
}
