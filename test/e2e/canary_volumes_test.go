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
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// The volume claims of added groups are deleted with them; the user's stay.
//
// Proves: Every sample that LWS publishes; shapes; volume claims.
func TestStylesVolumeClaims(t *testing.T) { inStyles(t, releaseVolumes) }

func releaseVolumes(t *testing.T, s style) {
	t.Helper()
	e := newEnv(t)
	e.prepareVolumes(12)
	w := e.adopt(model("model", 2, 2, func(s *lws.LeaderWorkerSet) {
		s.Spec.LeaderWorkerTemplate.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{
			ObjectMeta: metav1.ObjectMeta{Name: "weights"},
			Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: ptr.To("default"),
				AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("10Gi")}},
			},
		}}
	}))
	w.edit(image("v2"))
	w.release("r1", s.policy(policy("50%", "100%")))
	e.eventually("the canary's claims are deleted", func(ctx context.Context) error {
		claims, err := e.kube.CoreV1().PersistentVolumeClaims(e.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var names []string
		for _, c := range claims.Items {
			names = append(names, c.Name)
		}
		if len(names) != 4 {
			return fmt.Errorf("claims %s", strings.Join(names, ", "))
		}
		return nil
	})
}
