// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package host_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/test/hosttest"
)

func TestRunStopsWithoutCaches(t *testing.T) {
	t.Parallel()
	hosttest.StopsWithoutCaches(t, func(ctx context.Context, config *rest.Config, s host.Settings) error {
		m, err := host.New(config, s, "lease", runtime.NewScheme(), nil)
		if err != nil {
			return err
		}
		return host.Run(ctx, m, host.Metadata(host.LeaderWorkerSet))
	}, hosttest.Kind{GroupVersionKind: host.LeaderWorkerSet, Resource: "leaderworkersets"})
}
