// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package manage_test

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/manage"
	"github.com/lockstep-rollouts/lockstep/internal/manage/managetest"
)

func TestRunStopsWithoutCaches(t *testing.T) {
	t.Parallel()
	managetest.StopsWithoutCaches(t, func(ctx context.Context, config *rest.Config, s manage.Settings) error {
		m, err := manage.New(config, s, "lease", runtime.NewScheme(), nil)
		if err != nil {
			return err
		}
		return manage.Run(ctx, m, manage.Metadata(manage.LeaderWorkerSet))
	}, managetest.Kind{GroupVersionKind: manage.LeaderWorkerSet, Resource: "leaderworkersets"})
}
