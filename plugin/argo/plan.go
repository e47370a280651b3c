// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// move is a call of the driver, or the annotations that the Rollout lacks.
type move struct {
	Move

	annotate *revisions
}

// planMove decides what a Rollout and its workload need beside its steps: the next move, converge.Wait without annotations if there is
// none.
func planMove(t Target, c *pb.BatchContext) move {
	f := t.Facts
	if f.Rival != "" {
		return move{}
	}
	if m := t.ReconcileEnd(c); m.Outcome != converge.Wait {
		return move{Move: m}
	}
	return t.trackRevisions(c)
}

// revisions are the values of this plugin's annotations on a Rollout. Empty means absent.
type revisions struct {
	template, first, seen string
	canary, stable        string
}

// standsFor returns the workload's revision that the pod template stands for, "" if it is not known.
func (r revisions) standsFor() string {
	revision, _, _ := strings.Cut(cmp.Or(r.template, r.first), ".")
	return revision
}

// restarted returns the value of AnnotationRevision that starts the Rollout once more with the same revision.
func (r revisions) restarted() string {
	_, starts, _ := strings.Cut(r.template, ".")
	n, _ := strconv.Atoi(starts) // the first start has no number
	return fmt.Sprintf("%s.%d", r.standsFor(), max(n, 1)+1)
}

// trackRevisions decides what to annotate the Rollout with. If the workload's revision is neither the one that the Rollout's
// template stands for nor the one annotated last, the workload was edited. If it is the one annotated last, and the Rollout's
// template stands for another, the Rollout was undone. A Rollout whose pod template is another object's gets the annotations for
// analyses only.
//
// The pod template is not annotated before Argo has made the present one stable: Argo takes a template without a status for the one that
// runs already, and no step would see it. Without a step of this plugin, Argo would promote each start at once.
func (t Target) trackRevisions(c *pb.BatchContext) move {
	f := t.Facts
	template, serving := c.GetTemplateRevision(), Serving(c)
	if template == "" {
		return move{}
	}
	want, why := f.Noted, "noting the workload's revisions"
	// No single revision serves during a promotion, in which the note stays as it is.
	want.canary, want.stable = template, cmp.Or(serving, f.Noted.stable)
	if !f.Referenced {
		want.first = cmp.Or(f.Noted.first, serving)
		switch wanted := want.standsFor(); {
		case want.first == "", f.Stable == "" && wanted != template:
		case wanted != template && f.Noted.seen != template:
			want.seen, want.template, why = template, template, fmt.Sprintf("the workload has a new template, revision %s", template)
			if template == want.first {
				// The pod template must be the one of the first revision, byte by byte, so that Argo recognizes it.
				want.template = ""
			}
		case wanted == template:
			want.seen = template
			if t.Config.Policy != nil && isUnreleased(f, c) {
				want.template, why = want.restarted(), fmt.Sprintf("Argo considers revision %s stable, but nothing asked for its release: "+
					"the Rollout starts over at its first step. To release it without steps: kubectl argo rollouts promote %s -n %s --full", template, f.Name, f.Namespace)
			}
		}
	}
	if want == f.Noted {
		return move{}
	}
	return move{Move: Move{Why: why}, annotate: &want}
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

// isUnreleased reports whether Argo considers a template stable that the groups don't run, and that no release of this Rollout began or
// ends: it was promoted while no Controller watched, deployed first by a Rollout that was re-created, or became stable because the ReplicaSet of the
// stable template was deleted. Where Argo skips steps, it would again.
func isUnreleased(f Facts, c *pb.BatchContext) bool {
	id, own := Ours(f, c)
	begun := own && id.Hash == f.Hash
	return f.Promoted() && !f.Skipped && plugin.Waits(c) && begun == plugin.InFlight(c) && !plugin.Ending(c)
}

// heldFor returns what a template waits for that no step of the Rollout is about to release. It returns "" if nothing waits, or its steps
// are under way.
func (t Target) heldFor(c *pb.BatchContext) string {
	f := t.Facts
	id, own := Ours(f, c)
	mistaken := f.Promoted() && t.Config.Policy == nil
	waits := fmt.Sprintf("revision %s of the %s waits under hold", c.GetTemplateRevision(), plugin.KindOf(c.GetWorkload()))
	switch {
	case plugin.InFlight(c) && (!own || !f.Skipped && !mistaken), plugin.Ending(c), !plugin.Waits(c), c.GetTemplateRevision() == "", f.Stable != f.Hash && f.Current:
		return ""
	case mistaken:
		return fmt.Sprintf("%s: %v", waits, t.Config.Unfit)
	case f.Observed && !f.Current:
		return waits + ": Argo has not processed the Rollout's template, see kubectl argo rollouts get rollout " + f.Name + " -n " + f.Namespace
	case f.Skipped:
		return fmt.Sprintf("%s: Argo has skipped the steps of %s, which its ConfigMap argo-rollouts-config disables. Enable it, restart Argo's controller, "+
			"and change the template to release it. To release it without steps: lockstep release %s", waits, PluginName, plugin.InCommands(c.GetWorkload()))
	case own && id.Hash == f.Hash:
		return fmt.Sprintf("%s: release %s was rolled back after Argo had considered the template stable. Change the template to release again", waits, c.GetReleaseId())
	default:
		return ""
	}
}
