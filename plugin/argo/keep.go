// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"encoding/json"
	"fmt"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// keep decides what a Rollout's workload and the Rollout need beside its steps: the first thing that is due. actWait
// means that all is as it should be.
func keep(f Facts, config *Config, c *pb.BatchContext, canUndo bool) move {
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
	if m := mark(f, c); m.action != actWait {
		return m
	}
	return undone(f, c, canUndo)
}

// register notes on a workload at rest whose it is, as the owner of a release of nothing: so that a Rollout that is
// deleted while nobody looks can be told from one that never was. A workload that has something to release gets its
// owner with the release.
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

// stamp is what the annotations on a Rollout are to be; empty: absent.
type stamp struct {
	template, first, seen string
}

// mark says what to write on the Rollout. An edit of the workload is a revision that is neither the one that the
// Rollout's template stands for nor the one written last; the Rollout's template that stands for another while the
// workload's is still the one written last is an undo.
func mark(f Facts, c *pb.BatchContext) move {
	template := c.GetTemplateRevision()
	if template == "" {
		return move{}
	}
	want := stamp{template: f.Template, first: f.First, seen: f.Seen}
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
			// The pod template must be the very one of the first revision, so that Argo finds its way back to it.
			want.template = ""
		}
	}
	if wanted == template || f.Seen != template {
		want.seen = template
	}
	if want == (stamp{template: f.Template, first: f.First, seen: f.Seen}) {
		return move{}
	}
	return move{action: actStamp, stamp: want, revision: template, why: why}
}

// patch is the merge patch that makes the annotations so, if the Rollout is still the one that was looked at. It leaves
// the pod template alone unless its annotation changes, and leaves no empty map behind: Argo tells templates apart by
// their bytes.
func (s stamp) patch(f Facts) []byte {
	patch := map[string]any{"metadata": map[string]any{
		"resourceVersion": f.ResourceVersion,
		"annotations":     map[string]any{AnnotationFirst: s.first, AnnotationSeen: s.seen},
	}}
	if s.template != f.Template {
		var annotations any = map[string]any{AnnotationRevision: s.template}
		if s.template == "" && f.Lone {
			annotations = nil
		} else if s.template == "" {
			annotations = map[string]any{AnnotationRevision: nil}
		}
		patch["spec"] = map[string]any{"template": map[string]any{"metadata": map[string]any{"annotations": annotations}}}
	}
	raw, _ := json.Marshal(patch) //nolint:errchkjson // Strings.
	return raw
}

// undone brings the workload's template back to the one that Argo has returned to without a step: the stable one.
func undone(f Facts, c *pb.BatchContext, canUndo bool) move {
	template, wanted := c.GetTemplateRevision(), f.Wanted()
	if !canUndo || inFlight(c) || !f.promoted() || f.firstDeployment() || wanted == "" || wanted == template ||
		f.Seen != template || wanted != serving(c) {
		return move{}
	}
	return move{action: actUndo, revision: wanted, why: "the Rollout has returned to its stable template"}
}
