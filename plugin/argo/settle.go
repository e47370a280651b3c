// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/sleep"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// settle decides what Argo's own commands mean for the release: abort, promote --full, the end of the last step, and the
// return to the stable template. Steps are not called for these, or once only. actWait means that no action is due.
//
// It ends releases of this Rollout only, and begins one only if Argo considers a template stable that the groups don't run.
func settle(f Facts, config *Config, c *pb.BatchContext) move {
	id, own := ours(f, c)
	if inFlight(c) {
		if !own || c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_PROMOTING && !f.aborted() {
			return move{}
		}
		return end(f, c, id)
	}
	return beginPromoted(f, config, c, id)
}

// end decides whether the release in flight ends, and how.
func end(f Facts, c *pb.BatchContext, id ID) move {
	back := move{action: actRollback, release: c.GetReleaseId()}
	forth := move{action: actPromote, release: c.GetReleaseId(), revision: id.Revision}
	mine := id.Hash == f.Hash
	switch {
	case f.Abort && (mine || f.Current):
		back.why = "the Rollout was aborted"
		return back
	case !f.Current || f.Hash == "":
		// The status belongs to an older spec, and Argo's controller is about to update it.
		return move{}
	case !mine:
		back.why = fmt.Sprintf("the Rollout's template is no longer that of release %s", c.GetReleaseId())
		return back
	case f.promoted(), f.PromoteFull:
		if !promotable(c, id) {
			return move{}
		}
		forth.why = "the Rollout was promoted"
		return forth
	default:
		return move{}
	}
}

// promotable reports whether the driver would promote the revision that the release was begun for.
func promotable(c *pb.BatchContext, id ID) bool {
	return id.Revision == c.GetUpdateRevision() && id.Revision == c.GetTemplateRevision()
}

// beginPromoted begins the release of a template that Argo considers stable although no step began it, after promote --full in
// a pause before the first step. end then promotes it.
func beginPromoted(f Facts, config *Config, c *pb.BatchContext, id ID) move {
	template := c.GetTemplateRevision()
	if config.Policy == nil || f.Rival != "" || template == "" || serving(c) == "" || serving(c) == template || !f.Current || f.Abort ||
		c.GetState() == pb.State_STATE_UNMANAGED {
		return move{}
	}
	if config.Manual {
		// Only the time of the command tells which of the workload's templates is meant.
		if !f.PromoteFull {
			return move{}
		}
	} else if f.Wanted() != template || f.firstDeployment() || !f.promoted() && !f.PromoteFull {
		return move{}
	}
	attempt := 1
	if id.Hash == f.Hash {
		attempt = id.Attempt + 1
	}
	return move{
		action: actInitialize, release: f.id(template, attempt).String(),
		why: fmt.Sprintf("the Rollout was promoted before its first step: releasing revision %s", template),
	}
}

// settleNow performs what settle decides, before ctx ends. It returns the state of the workload.
func settleNow(ctx context.Context, t target) (*pb.BatchContext, error) {
	for {
		c, err := t.look(ctx)
		pause := 20 * time.Millisecond
		switch {
		case plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
			return &pb.BatchContext{Message: text(err)}, nil
		case err == nil:
			m := settle(t.facts, t.config, c)
			if m.action == actWait {
				return c, nil
			}
			_, err = t.perform(ctx, m, Step{})
		}
		if err != nil {
			pause = retryInterval
			if !retryable(err) && !outdated(err) {
				return c, err
			}
		}
		if sleep.For(ctx, pause); ctx.Err() != nil {
			if err == nil {
				err = ctx.Err()
			}
			return c, err
		}
	}
}
