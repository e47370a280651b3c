// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// settle decides what Argo's own verbs mean for the release: abort, promote --full, the end of the last step, and the
// return to the stable template. Steps see none of these, or see them once. actWait means that there is nothing to do.
//
// It only ends releases of this very Rollout, and begins one only where Argo takes a template for stable that the groups
// don't run.
func settle(f Facts, config *Config, c *pb.BatchContext) move {
	id, own := ours(f, c)
	if inFlight(c) {
		if !own || c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_PROMOTING && !f.aborted() {
			return move{}
		}
		return end(f, c, id)
	}
	return catchUp(f, config, c, id)
}

// end chooses how the release in flight ends, if it does.
func end(f Facts, c *pb.BatchContext, id ID) move {
	back := move{action: actRollback, release: c.GetReleaseId()}
	forth := move{action: actPromote, release: c.GetReleaseId(), revision: id.Revision}
	mine := id.Hash == f.Hash
	switch {
	case f.Abort && (mine || f.Current):
		back.why = "the Rollout was aborted"
		return back
	case !f.Current || f.Hash == "":
		// The status is that of an older spec; the controller is about to bring it up to date.
		return move{}
	case !mine:
		back.why = fmt.Sprintf("the Rollout's template is not the one of release %s any more", c.GetReleaseId())
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

// promotable reports whether the driver would promote what the release is for.
func promotable(c *pb.BatchContext, id ID) bool {
	return id.Revision == c.GetUpdateRevision() && id.Revision == c.GetTemplateRevision()
}

// catchUp begins the release of a template that Argo takes for stable although no step began it: promote --full while a
// pause came before the first step. What follows is end's.
func catchUp(f Facts, config *Config, c *pb.BatchContext, id ID) move {
	template := c.GetTemplateRevision()
	if config.Policy == nil || f.Rival != "" || template == "" || serving(c) == "" || serving(c) == template || !f.Current || f.Abort ||
		c.GetState() == pb.State_STATE_UNMANAGED {
		return move{}
	}
	if config.Manual {
		// Nothing says which of the workload's templates Argo's is but the moment.
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

// settleNow makes what settle wants durable, within the time that ctx leaves. It returns where the workload stands.
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
			pause = again
			if !passing(err) && !overtaken(err) {
				return c, err
			}
		}
		if sleep(ctx, pause); ctx.Err() != nil {
			if err == nil {
				err = ctx.Err()
			}
			return c, err
		}
	}
}
