// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record/history"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ListRevisions returns the workload's history, the newest first.
func (d *Driver) ListRevisions(ctx context.Context, req *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	var bad []drivererr.FieldViolation
	if req.GetLimit() < 0 {
		bad = fieldViolation("limit", "must not be negative")
	}
	key, err := d.accept(req.GetWorkload(), bad)
	if err != nil {
		return nil, err
	}
	if err := d.awaitHistory(ctx, key); err != nil {
		return nil, err
	}
	if err := takeTurn(ctx, key); err != nil {
		return nil, err
	}
	c, s, err := d.contextOf(key, "", false)
	if err != nil {
		return nil, err
	}
	all := d.revisions(c, s)
	slices.Reverse(all)
	// Others than the driver can create more than it keeps.
	all = all[:min(len(all), cmp.Or(int(req.GetLimit()), record.MaxHistoryLimit), record.MaxHistoryLimit)]
	if req.GetIncludeTemplates() {
		if err := d.fillTemplates(ctx, s, all); err != nil {
			return nil, observe.ContractError(err)
		}
	}
	return &pb.ListRevisionsResponse{Revisions: all, Warnings: d.historyWarnings(s)}, nil
}

// awaitHistory returns once the cache of the history is filled: a command runs a driver that has just started.
func (d *Driver) awaitHistory(ctx context.Context, key types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if cache.WaitForCacheSync(ctx.Done(), d.engine.Observer.History.Synced) {
		return nil
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
		"the cache of ControllerRevisions is not filled yet, so the history of %s is unknown", observe.Object(key))
}

// revisions returns the history of a workload, the oldest revision first. A template that waits for a release is the last,
// without a number.
func (d *Driver) revisions(c *pb.BatchContext, s *observe.Snapshot) []*pb.Revision {
	views := d.engine.Observer.History.Of(s.Key, s.StableObject.UID)
	all := make([]*pb.Revision, 0, len(views)+1)
	current := s.Stable.Revision
	for _, v := range views {
		r := revisionOf(v.Entry)
		r.Images = v.Images
		r.Stable, r.Current = slices.Contains(s.StableRevisions(), r.GetName()), r.GetName() == current
		// The history gets an outcome only once the release is over.
		if r.GetOutcome() == pb.State_STATE_UNSPECIFIED && plan.InFlight(s.Observation) && c.GetReleaseId() == r.GetReleaseId() && c.GetUpdateRevision() == r.GetName() {
			r.Outcome = c.GetState()
		}
		all = append(all, r)
	}
	known := slices.ContainsFunc(views, func(v *observe.HistoryRevision) bool { return v.Entry.Revision == current })
	if current != "" && !known {
		all = append(all, &pb.Revision{
			Name: current, Images: history.Images(s.Template()), Current: true, ChangedBy: s.Stable.ChangedBy,
			Stable: slices.Contains(s.StableRevisions(), current),
		})
	}
	return all
}

// revisionOf returns an entry as a message of the contract.
func revisionOf(e plan.Entry) *pb.Revision {
	r := &pb.Revision{
		Name: e.Revision, Number: e.Number, CreateTime: timestampOf(e.At), ReleaseId: e.Release, Owner: e.Owner,
		StartedBy: e.StartedBy, EndedBy: e.EndedBy, EndMessage: e.EndMessage,
		ChangedBy: e.By, EndTime: timestampOf(e.Ended), Problem: e.Problem,
	}
	switch e.Outcome {
	case plan.Promoted:
		r.Outcome = pb.State_STATE_COMPLETED
	case plan.RolledBack:
		r.Outcome = pb.State_STATE_ROLLED_BACK
	}
	return r
}

// maxTemplates bounds the templates of an answer, in bytes: with the rest it stays below the 4 MiB that gRPC's clients accept by default.
const maxTemplates = 3 << 20

// fillTemplates requests the templates of revisions, the newest first, until they are maxTemplates long: the caches don't keep them.
func (d *Driver) fillTemplates(ctx context.Context, s *observe.Snapshot, all []*pb.Revision) error {
	size := 0
	for _, r := range all {
		t := s.Template()
		if r.GetNumber() > 0 {
			v := d.engine.Observer.History.Find(s, r.GetName())
			if v == nil {
				continue // it was deleted meanwhile
			}
			cr, err := d.core.AppsV1().ControllerRevisions(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return fmt.Errorf("get ControllerRevision %s/%s: %w", v.Namespace, v.Name, err)
			}
			if t, err = history.Decode(cr); err != nil {
				continue // its problem is reported
			}
		}
		raw, err := json.Marshal(t)
		if err != nil {
			return fmt.Errorf("encode template: %w", err)
		}
		if size += len(raw); size > maxTemplates {
			return nil
		}
		r.Template = string(raw)
	}
	return nil
}

// historyWarnings returns why the history may not be what its user expects.
func (d *Driver) historyWarnings(s *observe.Snapshot) []*pb.Warning {
	var all []*pb.Warning
	if _, err := record.HistoryLimit(s.StableObject.Annotations); err != nil {
		all = append(all, &pb.Warning{Code: "HistoryLimitInvalid", Message: fmt.Sprintf("%s: %v", observe.Object(s.Key), err)})
	}
	if err := d.engine.HistoryError(s.Key); err != nil {
		all = append(all, &pb.Warning{Code: "HistoryNotWritten", Message: fmt.Sprintf("the history of %s is not complete: %v", observe.Object(s.Key), err)})
	}
	return all
}

// Undo puts the template of an older revision back into the spec, where it waits under the hold for a release.
func (d *Driver) Undo(ctx context.Context, req *pb.UndoRequest) (*pb.UndoResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	if err := d.awaitHistory(ctx, key); err != nil {
		return nil, err
	}
	undo := plan.Undo{Revision: req.GetRevision(), Template: req.GetTemplateRevision()}
	m, err := d.mutate(ctx, key, undo)
	if err != nil {
		return nil, err
	}
	revision, err := undo.Target(m.snapshot.Observation)
	if err != nil {
		return nil, err
	}
	return &pb.UndoResponse{Action: m.action, Revision: revision}, nil
}
