// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
)

// historyPause is how long a history that can't be written is not retried. No release waits for it.
const historyPause = time.Minute

// recordHistory is Do for writes of the history: one that is refused, such as for a missing permission, blocks no release. A
// retryable error is returned.
func (e *Engine) recordHistory(ctx context.Context, s *observe.Snapshot, action plan.Action) (bool, error) {
	wrote, err := e.Do(ctx, s, action)
	if err == nil {
		e.Observer.History.Resume(s.Key)
		return wrote, nil
	}
	if drivererr.Retryable(err) {
		return false, err
	}
	if _, before := e.Observer.History.Paused(s.Key, s.Now); before == nil || before.Error() != err.Error() {
		e.config.Log.Warn("history can't be written, the release continues without it", slog.String("workload", s.Key.String()), slog.Any("error", err))
	}
	e.Observer.History.Pause(s.Key, err, e.config.Now().Add(historyPause))
	return false, nil
}
