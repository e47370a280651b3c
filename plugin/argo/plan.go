// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"

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
	tracked := !config.Manual && !f.Referenced
	if m := trackRevisions(f, c, tracked); m.annotate != nil || !tracked {
		return m
	}
	return move{Move: restore(f, c, canUndo)}
}

// revisions are the values of this plugin's annotations on a Rollout. Empty: absent.
type revisions struct {
	template, first, seen string
	canary, stable        string
}

// trackRevisions decides what to annotate the Rollout with. If the workload's revision is neither the one that the Rollout's
// template stands for nor the one annotated last, the workload was edited. If it is the one annotated last, and the Rollout's
// template stands for another, the Rollout was undone. A Rollout that is not started by edits (auto is false) gets the annotations for
// analyses only.
func trackRevisions(f Facts, c *pb.BatchContext, auto bool) move {
	template, serving := c.GetTemplateRevision(), rollout.Serving(c)
	if template == "" {
		return move{}
	}
	want, why := f.Noted, "noting the workload's revisions"
	want.canary, want.stable = template, cmp.Or(serving, f.Noted.stable)
	if auto {
		want.first = cmp.Or(f.Noted.first, serving, template)
		wanted := cmp.Or(f.Noted.template, want.first)
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
	}
	if want == f.Noted {
		return move{}
	}
	return move{Move: rollout.Move{Revision: template, Why: why}, annotate: &want}
}

// patch is the merge patch that sets the annotations, on condition that the Rollout has not changed. It leaves the pod template
// alone unless its annotation changes, and leaves no empty map behind: Argo compares templates by their bytes.
func (r revisions) patch(f Facts) []byte {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": f.ResourceVersion,
		"annotations":     r.annotations(),
	}}
	if r.template != f.Noted.template {
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

// annotations are those on the Rollout itself. A value that is not known is not written.
func (r revisions) annotations() map[string]string {
	all := map[string]string{AnnotationFirst: r.first, AnnotationSeen: r.seen, AnnotationCanary: r.canary, AnnotationStable: r.stable}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// restore gives the workload the template that Argo considers stable after an undo without a step of this plugin: it returned to
// the stable template, or skipped all steps (promote --full, --skip-all-steps, rollbackWindow). In the second case settle then
// releases the template.
func restore(f Facts, c *pb.BatchContext, canUndo bool) rollout.Move {
	template, wanted := c.GetTemplateRevision(), f.Wanted
	if !canUndo || plugin.InFlight(c) || !f.Promoted() || f.Initial || wanted == "" || wanted == template || f.Seen != template {
		return rollout.Move{}
	}
	return rollout.Move{Action: rollout.ActUndo, Revision: wanted, Template: template, Why: "the Rollout was undone, and Argo considers revision " + wanted + " stable"}
}
