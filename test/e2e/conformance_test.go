// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"testing"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// The driver passes the conformance suite that the SDK has for any driver.
//
// Proves: SPEC: the conformance suite; rule 4: wait and watches; rule 7: two drivers, two callers.
// Proves (test, canary): SPEC rule 9 and errors: UNIMPLEMENTED; invalid requests name the field.
func TestConformance(t *testing.T) {
	t.Parallel()
	for name, style := range map[string]pb.Style{"canary": pb.Style_STYLE_CANARY, "partition": pb.Style_STYLE_PARTITION} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newEnv(t).deploy(model("model", 4, 2))
			for number, name := range pb.Capability_name {
				if c := pb.Capability(number); c != pb.Capability_CAPABILITY_UNSPECIFIED && !w.driver.Has(c) {
					t.Errorf("it does not serve %s", name)
				}
			}
			plugintest.Conformance(t, w.driver.Client, plugintest.Subject{
				Workload: w.ref(),
				Policy:   &pb.ReleasePolicy{Style: style, Batches: []string{"25%", "100%"}},
				Change: func(context.Context) error {
					w.edit(image("v2"))
					return nil
				},
			})
		})
	}
}
