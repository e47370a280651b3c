// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package view shows releases: as a status that is redrawn in place, as plain lines, or as JSON and YAML documents. The text
// is a pure function of a BatchContext and a time ([Status], [Progress]). The printers ([Lines], [Live], [Documents]) take
// events, and decide when to write it.
//
//	lines := view.NewLines(os.Stdout, time.Now(), false)
//	defer lines.Close()
//	h := &host.Host{Driver: client, Observe: lines.Observe}
package view

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// readyShown is how many ready groups a branch shows by default.
const readyShown = 8

// drawTree draws the workload as a tree: its revisions, the batches of the update revision, their groups, and the pod that blocks
// an unready group. In each branch, ready groups beyond a number are counted.
func drawTree(c *pb.BatchContext, now time.Time, ready int) string {
	if len(c.GetGroups()) == 0 {
		return ""
	}
	t := tree{now: now, ready: ready, rows: [][]string{{"NAME", "GROUP", "PODS", "SINCE", "STATUS"}}}
	t.add("", "", branch{name: c.GetWorkload().GetName(), status: stateText(c), children: revisionBranches(c)})
	return alignColumns(t.rows)
}

// branch is a node of the tree. With a group it is that group's.
type branch struct {
	name, status string
	group        *pb.Group
	children     []branch
}

type tree struct {
	now time.Time
	// ready is how many ready groups a branch shows.
	ready int
	rows  [][]string
}

// add adds the rows of a branch. The first prefix is that of its own row, the rest that of its children.
func (t *tree) add(first, rest string, b branch) {
	row := []string{first + b.name, "", "", "", b.status}
	if g := b.group; g != nil {
		row = []string{first + b.name, GroupWord(g), PodCount(g), readySince(g, t.now), groupMark(g)}
	}
	t.rows = append(t.rows, row)
	children := t.shown(b.children)
	for i, child := range children {
		if i < len(children)-1 {
			t.add(rest+"├─ ", rest+"│  ", child)
		} else {
			t.add(rest+"└─ ", rest+"   ", child)
		}
	}
}

// shown returns the children without the ready groups that are too many, which are last, and which one branch counts.
func (t *tree) shown(children []branch) []branch {
	first := slices.IndexFunc(children, func(b branch) bool { return b.group.GetReady() })
	if first < 0 || len(children)-first <= t.ready {
		return children
	}
	shown := slices.Clip(children[:first+t.ready-1]) // one row is the one that counts the others
	hidden := int32(len(children) - len(shown))      //nolint:gosec // a number of groups
	return append(shown, branch{name: fmt.Sprintf("%s, ready", countOf(hidden, "more group"))})
}

// revisionBranches returns a branch for the stable revision and, during a release, one for the update revision.
func revisionBranches(c *pb.BatchContext) []branch {
	var stable, updated []*pb.Group
	for _, g := range c.GetGroups() {
		// Without an update every group is at the only revision. A group of the canary that has no pod yet has none.
		if g.GetUpdated() && c.GetUpdateRevision() != c.GetStableRevision() || g.GetRole() == pb.GroupRole_GROUP_ROLE_CANARY && g.GetRevision() == "" {
			updated = append(updated, g)
		} else {
			stable = append(stable, g)
		}
	}
	var branches []branch
	if len(stable) > 0 {
		branches = append(branches, branch{
			name: "stable " + orDash(c.GetStableRevision()), status: readyOf(stable), children: groupBranches(stable),
		})
	}
	if c.GetUpdateRevision() == "" || len(updated) == 0 && !plugin.InFlight(c) {
		return branches
	}
	status := readyOf(updated)
	if plugin.InFlight(c) && routesRequests(c) {
		status += fmt.Sprintf(", %d%% of requests", c.GetTrafficWeight())
	}
	return append(branches, branch{name: "update " + c.GetUpdateRevision(), status: status, children: batchBranches(c, updated)})
}

// batchBranches sorts updated groups into the batches that update them, until the end of the release is requested.
func batchBranches(c *pb.BatchContext, updated []*pb.Group) []branch {
	plan := c.GetBatchPlan()
	if len(plan) == 0 || !plugin.InFlight(c) || plugin.Ending(c) {
		return groupBranches(updated)
	}
	sorted := make([][]*pb.Group, len(plan)+1)
	for _, g := range updated {
		// In place the highest indices are updated first.
		nth := g.GetIndex()
		if g.GetRole() == pb.GroupRole_GROUP_ROLE_STABLE {
			nth = c.GetReplicas() - 1 - g.GetIndex()
		}
		i := slices.IndexFunc(plan, func(b *pb.Batch) bool { return nth < b.GetGroups() })
		if i < 0 {
			i = len(plan) // the workload was scaled down
		}
		sorted[i] = append(sorted[i], g)
	}
	branches := make([]branch, 0, len(plan))
	before := int32(0)
	for i, b := range plan {
		batch := branch{name: fmt.Sprintf("batch %d/%d (%s)", i+1, len(plan), b.GetTarget()), children: groupBranches(sorted[i])}
		switch added := b.GetGroups() - before; {
		case c.CurrentBatch == nil || int32(i) > c.GetCurrentBatch():
			batch.status = Faint.Render(fmt.Sprintf("waits, %s", countOf(added, "group")))
		case added == 0:
			batch.status = "no further group"
		default:
			batch.status = readyOf(sorted[i])
		}
		before = b.GetGroups()
		branches = append(branches, batch)
	}
	return append(branches, groupBranches(sorted[len(plan)])...)
}

// groupBranches returns the groups, unready ones first, with the pod that blocks each of these.
func groupBranches(groups []*pb.Group) []branch {
	var unready, ready []branch
	for _, g := range groups {
		b := branch{name: g.GetLeader(), group: g}
		if g.GetReady() {
			ready = append(ready, b)
			continue
		}
		if p := podProblem(g); g.GetPod() != "" && p != "" {
			b.children = []branch{{name: g.GetPod(), status: p}}
		}
		unready = append(unready, b)
	}
	return append(unready, ready...)
}

func readyOf(groups []*pb.Group) string {
	ready := 0
	for _, g := range groups {
		if g.GetReady() {
			ready++
		}
	}
	text := fmt.Sprintf("%d/%d ready", ready, len(groups))
	if ready == len(groups) {
		return Good.Render(text)
	}
	return text
}

// groupMark returns a sign and a word for a group, as Argo's tree has them.
func groupMark(g *pb.Group) string {
	switch reason := g.GetReason(); {
	case g.GetReady():
		return Good.Render("✔") + " ready"
	case reason == "" || Transient(reason):
		return Active.Render("◌ " + cmp.Or(reason, "not ready"))
	default:
		return Alert.Render("✖ " + reason)
	}
}
