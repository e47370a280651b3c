// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/history"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/release"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Undo puts the template of an older revision back into the spec, where it waits under the hold for a release.
func (d *Driver) Undo(ctx context.Context, req *pb.UndoRequest) (*pb.UndoResponse, error) {
	key, err := d.keyFor(req.GetWorkload())
	if err != nil {
		return nil, err
	}
	if err := d.awaitHistory(ctx, key); err != nil {
		return nil, err
	}
	d.awaitRead(ctx, key)
	response := &pb.UndoResponse{}
	response.Action, err = d.mutate(ctx, key, func(s *seen) (plan.Action, error) {
		if err := checkUndo(s); err != nil {
			return nil, err
		}
		if response.Revision, err = d.older(s, req.GetRevision()); err != nil {
			return nil, err
		}
		if response.GetRevision() == s.Stable.Revision {
			return nil, nil //nolint:nilnil // no action, no error: it is there
		}
		t, err := d.oldTemplate(ctx, s, response.GetRevision())
		if err != nil {
			return nil, err
		}
		want, errWant := digestOf(t.LeaderWorkerTemplate, t.NetworkConfig)
		have, errHave := d.observer.digest(s.stable)
		if errWant == nil && errHave == nil && want == have {
			return nil, nil //nolint:nilnil // it is there, and LWS is about to record it
		}
		return plan.BringBack{Revision: response.GetRevision(), Template: t, Record: adopted(s)}, nil
	})
	if err != nil {
		return nil, err
	}
	return response, nil
}

// checkUndo refuses to change a template in the middle of its release, which has its own way back.
func checkUndo(s *seen) error {
	if err := checkWorkload(s); err != nil {
		return err
	}
	if err := checkRead(s); err != nil {
		return err
	}
	if !inFlight(s) {
		return nil
	}
	id := s.Record.Release.ID
	return drivererr.WithMetadata(drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS,
		"release %q of LeaderWorkerSet %s is not over: roll it back, or wait for its end, and then undo", id, s.key), "release_id", id)
}

// older is the revision that is asked for, or else the newest that served before the one in the spec.
func (d *Driver) older(s *seen, revision string) (string, error) {
	if revision != "" {
		return revision, nil
	}
	if s.Stable.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED,
			"the LeaderWorkerSet controller has not recorded the template of %s yet, so it can't be told what came before it", s.key)
	}
	var newest plan.Entry
	for _, v := range d.snapshots.of(s.key, s.stable.UID) {
		e := v.entry
		if e.Problem == "" && e.Revision != s.Stable.Revision && e.Outcome != plan.RolledBack && e.Number > newest.Number {
			newest = e
		}
	}
	if newest.Revision == "" {
		return "", drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision that served before %s%s", s.key, s.Stable.Revision, d.kept(s))
	}
	return newest.Revision, nil
}

// oldTemplate is the template of a revision from the history, or as long as LWS has it, from LWS.
func (d *Driver) oldTemplate(ctx context.Context, s *seen, revision string) (release.Template, error) {
	v := d.snapshots.find(s.stable, revision)
	switch {
	case v == nil && d.caches.revisionNamed(s.stable, revision) != nil:
		return d.applier.template(ctx, s, revision)
	case v == nil:
		return release.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"the history of LeaderWorkerSet %s has no revision %s (any more)%s. Bring its template back with kubectl apply or from Git",
			s.key, revision, d.kept(s))
	case v.entry.Problem != "":
		return release.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%s", v.entry.Problem)
	}
	cr, err := d.core.AppsV1().ControllerRevisions(v.Namespace).Get(ctx, v.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return release.Template{}, drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND,
			"ControllerRevision %s/%s with revision %s of LeaderWorkerSet %s was deleted a moment ago", v.Namespace, v.Name, revision, s.key)
	}
	if err != nil {
		return release.Template{}, fmt.Errorf("get ControllerRevision %s/%s: %w", v.Namespace, v.Name, err)
	}
	t, err := history.Template(cr)
	if err != nil {
		return t, drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "%v", err)
	}
	return t, nil
}

// kept says which revisions there are, for people who asked for another.
func (d *Driver) kept(s *seen) string {
	all := d.snapshots.of(s.key, s.stable.UID)
	names := make([]string, 0, len(all))
	for _, v := range all {
		names = append(names, fmt.Sprintf("%d (%s)", v.entry.Number, v.entry.Revision))
	}
	if len(names) == 0 {
		return "; it is empty"
	}
	return "; it has " + strings.Join(names, ", ")
}
