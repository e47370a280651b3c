// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// plan decides what a Rollout and its workload need beside its steps: the next action, or actWait if there is none.
func plan(f Facts, config *Config, c *pb.BatchContext, canUndo bool) move {
	if f.Rival != "" {
		return move{}
	}
	if c.GetState() == pb.State_STATE_UNMANAGED {
		return move{action: actAdopt, why: fmt.Sprintf("Rollout %s/%s releases it", f.Namespace, f.Name)}
	}
	if m := settle(f, config, c); m.action != actWait {
		return m
	}
	if m := register(f, c); m.action != actWait {
		return m
	}
	if config.Manual || f.Referenced {
		return move{}
	}
	if m := trackRevisions(f, c); m.action != actWait {
		return m
	}
	return restore(f, c, canUndo)
}

// register makes the Rollout the owner of a workload at rest, by a release of nothing: so a Rollout that was deleted while
// no Controller ran can be told from one that never existed. A workload with something to release gets its owner with
// that release.
func register(f Facts, c *pb.BatchContext) move {
	template := c.GetTemplateRevision()
	if inFlight(c) || c.GetOwner() == f.Owner() || template == "" || serving(c) != template {
		return move{}
	}
	id := ID{Rollout: f.short(), Number: f.Number, Hash: adopted, Revision: template, Attempt: 1}
	return move{action: actRegister, release: id.String(), why: fmt.Sprintf("Rollout %s/%s releases it", f.Namespace, f.Name)}
}

// registration is the policy of a release of nothing.
func registration() *pb.ReleasePolicy {
	return &pb.ReleasePolicy{Style: pb.Style_STYLE_CANARY, Batches: []string{"100%"}}
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
		want.first = serving(c)
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
	return move{action: actAnnotate, revisions: want, revision: template, why: why}
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
func restore(f Facts, c *pb.BatchContext, canUndo bool) move {
	template, wanted := c.GetTemplateRevision(), f.Wanted()
	if !canUndo || inFlight(c) || !f.promoted() || f.firstDeployment() || wanted == "" || wanted == template || f.Seen != template {
		return move{}
	}
	return move{action: actUndo, revision: wanted, why: "the Rollout was undone, and Argo considers revision " + wanted + " stable"}
}
