// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFakeDriverConforms(t *testing.T) {
	driver := plugintest.NewFakeDriver()
	driver.SetWorkload("default", "vllm", 4, "rev-1")
	plugintest.Conformance(t, plugintest.Connect(t, driver, driver), plugintest.Subject{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"},
		Policy:   &pb.ReleasePolicy{Style: pb.Style_STYLE_PARTITION, Batches: []string{"25%", "100%"}},
		Change: func(context.Context) error {
			driver.SetWorkload("default", "vllm", 4, "rev-2")
			return nil
		},
	})
}
