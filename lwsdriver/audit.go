// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
)

// maxUser is the longest name of a user that is recorded, in bytes.
const maxUser = 253

// userOf returns the name of the authenticated caller, or "" if the call was not authenticated.
func userOf(ctx context.Context) string {
	u := access.UserOf(ctx)
	if u == nil {
		return ""
	}
	return observe.Shorten(u.GetName(), maxUser)
}

// audit logs a mutating call: who requested what, what was decided, and the result.
// Hosts repeat calls all the time, so those that changed nothing are logged at debug level.
func (d *Driver) audit(ctx context.Context, key types.NamespacedName, i plan.Intent, m mutation, err error) {
	method, _ := grpc.Method(ctx)
	level, attrs := slog.LevelInfo, []slog.Attr{
		slog.String("user", userOf(ctx)), slog.String("method", method), slog.String("workload", key.String()),
		slog.String("release", releaseOf(i)), slog.String("code", status.Code(err).String()),
	}
	switch {
	case err != nil:
		attrs = append(attrs, slog.String("error", status.Convert(err).Message()))
	case m.decision.Action == nil:
		level = slog.LevelDebug
		attrs = append(attrs, slog.String("decision", "nothing to do"))
	default:
		attrs = append(attrs, slog.String("decision", fmt.Sprint(m.decision.Action)))
	}
	d.options.Logger.LogAttrs(ctx, level, "audit", attrs...)
}

// releaseOf returns the release that an intent names, or "" if there is none.
func releaseOf(i plan.Intent) string {
	switch i := i.(type) {
	case plan.Begin:
		return i.ReleaseID
	case plan.SetTarget:
		return i.ReleaseID
	case plan.Promote:
		return i.ReleaseID
	case plan.RollBack:
		return i.ReleaseID
	case plan.Route:
		return i.ReleaseID
	}
	return ""
}
