// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-rollouts/lockstep/internal/sleep"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Settle decides what the host's own commands mean for the release: abort, promotion in full, the end of the last step, and the
// return to the stable template. Steps are not called for these, or once only. ActWait means that no action is due.
//
// It ends releases of this Rollout only, and begins one only if the host considers a template stable that the groups don't run.
func Settle(f Facts, config *Config, c *pb.BatchContext) Move {
	id, own := Ours(f, c)
	if inFlight(c) {
		if !own || c.GetState() == pb.State_STATE_ROLLING_BACK || c.GetState() == pb.State_STATE_PROMOTING && !f.aborted() {
			return Move{}
		}
		if m := end(f, c, id); !requested(c, m) {
			return m
		}
		return Move{} // it has failed, and the driver completes it once the cause is resolved
	}
	return beginPromoted(f, config, c, id)
}

// Register makes the Rollout the owner of a workload at rest, by a release of nothing: so a Rollout that was deleted while
// no host watched can be told from one that never existed. A workload with something to release gets its owner with
// that release.
func Register(f Facts, c *pb.BatchContext) Move {
	template := c.GetTemplateRevision()
	if inFlight(c) || c.GetOwner() == f.Owner || template == "" || Serving(c) != template {
		return Move{}
	}
	id := ID{Rollout: f.short(), Number: f.Number, Hash: adopted, Revision: template, Attempt: 1}
	return Move{Action: ActRegister, Release: id.String(), Why: fmt.Sprintf("Rollout %s/%s releases it", f.Namespace, f.Name)}
}

// registration is the policy of a release of nothing.
func registration() *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}
}

// end decides whether the release in flight ends, and how.
func end(f Facts, c *pb.BatchContext, id ID) Move {
	back := Move{Action: ActRollback, Release: c.GetReleaseId()}
	forth := Move{Action: ActPromote, Release: c.GetReleaseId(), Revision: id.Revision}
	mine := id.Hash == f.Hash
	switch {
	case f.Abort && (mine || f.Current):
		back.Why = "the Rollout was aborted"
		return back
	case !f.Current || f.Hash == "":
		// The status belongs to an older spec, and the host is about to update it.
		return Move{}
	case !mine:
		back.Why = fmt.Sprintf("the Rollout's template is no longer that of release %s", c.GetReleaseId())
		return back
	case f.Promoted(), f.PromoteFull:
		if !promotable(c, id) {
			return Move{}
		}
		forth.Why = "the Rollout was promoted"
		return forth
	default:
		return Move{}
	}
}

// requested reports whether the end of a move was requested before, or can't be any more: what is rolled back is not promoted.
func requested(c *pb.BatchContext, m Move) bool {
	return m.Action == ActPromote && c.GetIntent() != pb.FinalizeIntent_FINALIZE_INTENT_UNSPECIFIED ||
		m.Action == ActRollback && c.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK
}

// promotable reports whether the driver would promote the revision that the release was begun for.
func promotable(c *pb.BatchContext, id ID) bool {
	return id.Revision == c.GetUpdateRevision() && id.Revision == c.GetTemplateRevision()
}

// beginPromoted begins the release of a template that the host considers stable although no step began it, after a promotion in
// full during a pause before the first step. end then promotes it.
func beginPromoted(f Facts, config *Config, c *pb.BatchContext, id ID) Move {
	template := c.GetTemplateRevision()
	if config.Policy == nil || f.Rival != "" || template == "" || Serving(c) == "" || Serving(c) == template || !f.Current || f.Abort ||
		c.GetState() == pb.State_STATE_UNMANAGED {
		return Move{}
	}
	if config.Manual {
		// Only the time of the command tells which of the workload's templates is meant.
		if !f.PromoteFull {
			return Move{}
		}
	} else if f.Wanted != template || f.Initial || !f.Promoted() && !f.PromoteFull {
		return Move{}
	}
	attempt := 1
	if id.Hash == f.Hash {
		attempt = id.Attempt + 1
	}
	return Move{
		Action: ActInitialize, Release: f.ID(template, attempt).String(),
		Why: fmt.Sprintf("the Rollout was promoted before its first step: releasing revision %s", template),
	}
}

// SettleNow performs what [Settle] decides, before ctx ends. It returns the state of the workload.
func SettleNow(ctx context.Context, t Target) (*pb.BatchContext, error) {
	for {
		c, err := t.Look(ctx)
		pause := 20 * time.Millisecond
		switch {
		case plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
			return &pb.BatchContext{Message: Text(err)}, nil
		case err == nil:
			m := Settle(t.Facts, t.Config, c)
			if m.Action == ActWait {
				return c, nil
			}
			_, err = t.Perform(ctx, m, Step{})
		}
		if err != nil {
			pause = retryInterval
			if !Retryable(err) && !Outdated(err) {
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
