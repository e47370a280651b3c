// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// workload is what browsers get of a workload: words, as `lockstep watch` has them, and times, since the page counts seconds.
type workload struct {
	// Key is "namespace/name".
	Key string `json:"key"`
	// Running reports whether a release is in flight or has failed, Live also whether one ran since the dashboard started.
	Running bool `json:"running"`
	Live    bool `json:"live"`
	// Release is the last release, which began at Began.
	Release string     `json:"release"`
	Began   *time.Time `json:"began"`
	// Host is the release's owner if that is another host than the command line. Empty otherwise.
	Host string `json:"host"`

	State   string `json:"state"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// Since is when this dashboard observed that the workload entered the state. AtLeast: it was in the state before.
	Since   time.Time `json:"since"`
	AtLeast bool      `json:"atLeast"`
	// Deadline is nil without one.
	Deadline *time.Time `json:"deadline"`

	Batch    string `json:"batch"`
	Planned  int32  `json:"planned"`
	Updated  int32  `json:"updated"`
	Ready    int32  `json:"ready"`
	Replicas int32  `json:"replicas"`
	Traffic  string `json:"traffic"`
	// Share is the update revision's percentage of what Traffic counts.
	Share    int32  `json:"share"`
	Capacity string `json:"capacity"`

	Groups  []group `json:"groups"`
	Omitted int32   `json:"omitted"`
	// Facts are further labels and texts.
	Facts [][2]string `json:"facts"`
	// History changes when the history may have changed.
	History string `json:"history"`
}

// group is a group of a workload.
type group struct {
	Name     string `json:"name"`
	Leader   string `json:"leader"`
	Revision string `json:"revision"`
	// Letter is A for the stable revision, B for the update revision, C for others, and empty without a leader.
	Letter string     `json:"letter"`
	Ready  bool       `json:"ready"`
	Added  bool       `json:"added"`
	Pods   string     `json:"pods"`
	Since  *time.Time `json:"since"`
	Status string     `json:"status"`
	// Wrong reports whether the group is not ready for another reason than those every new group has, and Pod is the pod that has it.
	Wrong bool   `json:"wrong"`
	Pod   string `json:"pod"`
}

// describeWorkload returns the workload of a context. before is what it was, nil if it is new.
func describeWorkload(c *pb.BatchContext, before *workload, now time.Time) *workload {
	w := &workload{
		Key: plugin.WorkloadKey(c.GetWorkload()), Running: view.Running(c), Live: view.Running(c) || before != nil && before.Live,
		Release: c.GetReleaseId(), Began: timeOf(c.GetStartTime()), Replicas: c.GetReplicas(), Share: c.GetTrafficWeight(),
		State: view.StateWord(view.WorkloadState(c)), Reason: c.GetReason(), Message: c.GetMessage(),
		Since: now, AtLeast: before == nil, Deadline: timeOf(c.GetDeadline()),
		Batch: view.BatchWord(c), Planned: c.GetPlanned(), Updated: c.GetUpdated(), Ready: c.GetUpdatedReady(), Traffic: trafficText(c),
		Groups: make([]group, 0, len(c.GetGroups())), Omitted: c.GetGroupsOmitted(), Facts: pageFacts(c),
		History: fmt.Sprint(c.GetReleaseId(), c.GetState(), c.GetTemplateRevision()),
	}
	if host.IsOther(c.GetOwner()) {
		w.Host = c.GetOwner()
	}
	if before != nil && before.State == w.State {
		w.Since, w.AtLeast = before.Since, before.AtLeast
	}
	ready := 0
	for _, g := range c.GetGroups() {
		w.Groups = append(w.Groups, describeGroup(c, g))
		if g.GetReady() {
			ready++
		}
	}
	if w.Omitted > 0 {
		ready = int(c.GetStableReady() + c.GetUpdatedReady()) // without the canary's groups during a promotion
	}
	w.Capacity = fmt.Sprintf("%d ready of %d requested, %d exist", ready, c.GetReplicas(), c.GetTotal())
	return w
}

func describeGroup(c *pb.BatchContext, g *pb.Group) group {
	d := group{
		Name: view.GroupWord(g), Leader: g.GetLeader(), Revision: g.GetRevision(), Letter: "C",
		Ready: g.GetReady(), Added: g.GetRole() == pb.GroupRole_GROUP_ROLE_CANARY,
		Pods: view.PodCount(g), Since: timeOf(g.GetSince()), Status: "ready",
		Pod: g.GetPod(), Wrong: !g.GetReady() && g.GetReason() != "" && !view.Transient(g.GetReason()),
	}
	switch {
	case g.GetRevision() == "":
		d.Letter = ""
	case g.GetRevision() == c.GetStableRevision():
		d.Letter = "A"
	case g.GetUpdated():
		d.Letter = "B"
	}
	if !g.GetReady() {
		d.Status = cmp.Or(view.Problem(g), "not ready")
	}
	return d
}

// trafficText returns the effective share of the update revision, and the requested one if it is another.
func trafficText(c *pb.BatchContext) string {
	if !plugin.InFlight(c) || c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_UNSPECIFIED {
		return "-"
	}
	return view.Weight(c)
}

// pageFacts returns what only the page of one workload shows. Facts without a text are left out.
func pageFacts(c *pb.BatchContext) [][2]string {
	revisions, waiting, style := c.GetStableRevision(), "", ""
	if update := c.GetUpdateRevision(); update != "" && update != revisions {
		revisions = "A " + revisions + " → B " + update
	}
	if !plugin.InFlight(c) && c.GetTemplateRevision() != "" && plugin.Waits(c) {
		waiting = c.GetTemplateRevision() + " waits for a release"
	}
	if c.GetReleaseId() != "" {
		style = view.StyleWord(c.GetStyle())
	}
	second := c.GetCanaryWorkload()
	if len(c.GetRoles()) > 0 {
		second = "" // units are no object
	}
	batches := make([]string, 0, len(c.GetBatchPlan()))
	for _, b := range c.GetBatchPlan() {
		batches = append(batches, fmt.Sprintf("%s: %d", b.GetTarget(), b.GetGroups()))
	}
	return slices.DeleteFunc([][2]string{
		{"Groups", fmt.Sprintf("%d requested, of %d pods each", c.GetReplicas(), c.GetSize())}, {"Roles", view.RoleCounts(c)},
		{"Revision", revisions}, {"Template", waiting}, {"Release", c.GetReleaseId()}, {"Style", style}, {"Batches", strings.Join(batches, ", ")},
		{"Second workload", second}, {"Owner", c.GetOwner()},
		{"Begun by", c.GetStartedBy()}, {"Ended by", c.GetEndedBy()}, {"Why", c.GetEndMessage()},
	}, func(fact [2]string) bool { return fact[1] == "" })
}

func timeOf(t *timestamppb.Timestamp) *time.Time {
	if t == nil {
		return nil
	}
	at := t.AsTime()
	return &at
}
