// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The volume claims of added groups are deleted with them; the user's stay.
//
// Proves: Every sample that LWS publishes; volume claims.
func TestStylesVolumeClaims(t *testing.T) { inStyles(t, releaseVolumes) }

func releaseVolumes(t *testing.T, s style) {
	t.Helper()
	e := newEnv(t)
	e.prepareVolumes(12)
	w := e.adopt(model("model", 2, 2, claims("10Gi")))
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
