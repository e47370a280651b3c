// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/rollout"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// move is a call of the driver, or the annotations that the Rollout lacks.
type move struct {
	rollout.Move

	annotate *revisions
}

// plan decides what a Rollout and its workload need beside its steps: the next move, rollout.ActWait without annotations if there is
// none.
func plan(f Facts, config *Config, c *pb.BatchContext, canUndo bool) move {
	if f.Rival != "" {
		return move{}
	}
	if c.GetState() == pb.State_STATE_UNMANAGED {
		return move{Move: rollout.Move{Action: rollout.ActAdopt, Why: fmt.Sprintf("Rollout %s/%s releases it", f.Namespace, f.Name)}}
	}
	if m := rollout.Settle(f.Facts, &config.Config, c); m.Action != rollout.ActWait {
		return move{Move: m}
	}
	if m := rollout.Register(f.Facts, c); m.Action != rollout.ActWait {
		return move{Move: m}
	}
	if config.Manual || f.Referenced {
		return move{}
	}
	if m := trackRevisions(f, c); m.annotate != nil {
		return m
	}
	return move{Move: restore(f, c, canUndo)}
}

// revisions are the values of this plugin's annotations on a Rollout. Empty: absent.
type revisions struct {
	template, first, seen string
}

// trackRevisions decides what to annotate the Rollout with. If the workload's revision is neither the one that the Rollout's
// template stands for nor the one annotated last, the workload was edited. If it is the one annotated last, and the Rollout's
// template stands for another, the Rollout was undone.
func trackRevisions(f Facts, c *pb.BatchContext) move {
	template := c.GetTemplateRevision()
	if template == "" {
		return move{}
	}
	want := revisions{template: f.Template, first: f.First, seen: f.Seen}
	if want.first == "" {
		want.first = rollout.Serving(c)
		if want.first == "" {
			want.first = template
		}
	}
	wanted := f.Template
	if wanted == "" {
		wanted = want.first
	}
	why := "noting the workload's revision"
	if wanted != template && f.Seen != template {
		want.template, why = template, fmt.Sprintf("the workload has a new template, revision %s", template)
		if template == want.first {
			// The pod template must be the one of the first revision, byte by byte, so that Argo recognizes it.
			want.template = ""
		}
	}
	if wanted == template || f.Seen != template {
		want.seen = template
	}
	if want == (revisions{template: f.Template, first: f.First, seen: f.Seen}) {
		return move{}
	}
	return move{Move: rollout.Move{Revision: template, Why: why}, annotate: &want}
}

// patch is the merge patch that sets the annotations, on condition that the Rollout has not changed. It leaves the pod template
// alone unless its annotation changes, and leaves no empty map behind: Argo compares templates by their bytes.
func (r revisions) patch(f Facts) []byte {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": f.ResourceVersion,
		"annotations":     map[string]any{AnnotationFirst: r.first, AnnotationSeen: r.seen},
	}}
	if r.template != f.Template {
		var annotations any = map[string]any{AnnotationRevision: r.template}
		if r.template == "" && f.OnlyAnnotation {
			annotations = nil
		} else if r.template == "" {
			annotations = map[string]any{AnnotationRevision: nil}
		}
		patch["spec"] = map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}
	}
	raw, _ := json.Marshal(patch) //nolint:errchkjson // Strings.
	return raw
}

// restore gives the workload the template that Argo considers stable after an undo without a step of this plugin: it returned to
// the stable template, or skipped all steps (promote --full, --skip-all-steps, rollbackWindow). In the second case settle then
// releases the template.
func restore(f Facts, c *pb.BatchContext, canUndo bool) rollout.Move {
	template, wanted := c.GetTemplateRevision(), f.Wanted
	if !canUndo || plugin.InFlight(c) || !f.Promoted() || f.Initial || wanted == "" || wanted == template || f.Seen != template {
		return rollout.Move{}
	}
	return rollout.Move{Action: rollout.ActUndo, Revision: wanted, Why: "the Rollout was undone, and Argo considers revision " + wanted + " stable"}
}
