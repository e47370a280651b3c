// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package preflight

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func volumeRules() []Rule {
	return []Rule{{
		ID: "VolumeReadWriteOnce", Severity: warning, Needs: Claims, Applies: func(s *Inventory) bool { return len(ClaimNames(s)) > 0 },
		Title: "Groups share a volume that only one node can attach",
		Why: "A ReadWriteOnce volume is attached to one node, a ReadWriteOncePod one used by one pod: new groups on other nodes stay in " +
			"ContainerCreating while the old ones exist",
		Details: "It covers claims that the templates name, which all groups share. Claims of `volumeClaimTemplates` are one per pod. A " +
			"canary gets new, empty ones: what it caches there is loaded again",
		Fix:   "Share a volume that many can read (ReadOnlyMany, ReadWriteMany), or give each pod its own by volumeClaimTemplates",
		Check: sharedClaims,
	}}
}

// ClaimNames returns the PersistentVolumeClaims that the templates name, sorted.
func ClaimNames(s *Inventory) []string {
	var names []string
	for _, t := range s.templates() {
		for _, v := range t.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				names = append(names, v.PersistentVolumeClaim.ClaimName)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

func sharedClaims(s *Inventory) []Hit {
	if s.replicas()*int(ptr.Deref(s.Workload.Spec.LeaderWorkerTemplate.Size, 1)) < 2 && s.Peak().Groups() == 0 {
		return nil // used by a single pod
	}
	names := ClaimNames(s)
	var hits []Hit
	for _, c := range s.Claims {
		shared := slices.ContainsFunc(c.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
			return m == corev1.ReadWriteMany || m == corev1.ReadOnlyMany
		})
		if shared || len(c.Spec.AccessModes) == 0 || !slices.Contains(names, c.Name) || c.Namespace != s.Workload.Namespace {
			continue
		}
		hits = append(hits, Hit{
			Object: &pb.ObjectRef{Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name}, Field: "spec.accessModes",
			Message: fmt.Sprintf("the pods of every group mount it, and it is %s", c.Spec.AccessModes[0]),
		})
	}
	return hits
}
