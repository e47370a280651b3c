// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// releaseMetrics collects the state of each adopted workload when it is scraped, from the caches: one observation per workload, and no
// request to the API server. A standby collects no workload, so that each has one series.
type releaseMetrics struct{ driver *Driver }

// observed is what a workload's metrics are computed from: what CalculateBatchContext returns, and what it was computed from.
type observed struct {
	*pb.BatchContext
	*observe.Snapshot
}

// releaseGauge is one metric of a workload.
type releaseGauge struct {
	desc *prometheus.Desc
	// value returns false if the workload has no such value.
	value func(observed) (float64, bool)
}

var driverReady = prometheus.NewDesc("lockstep_ready", "1 while the driver works on releases and serves calls. 0 while its caches are not filled, or another "+
	"driver leads.", nil, nil)

var releaseState = newDesc("release_state", "1 for the state of the release in progress, or of the last one.", "state", "reason")

var releaseGauges = []releaseGauge{
	countGauge("workload_replicas", "Requested groups.", func(o observed) int32 { return o.GetReplicas() }),
	countGauge("workload_ready_groups", "Ready groups of all revisions, added ones included.", observed.readyGroups),
	countGauge("workload_max_unavailable_groups", "How many requested groups may be unavailable at a time: the workload's own maxUnavailable, at least 1. Of a "+
		"DisaggregatedSet, units: what maxUnavailable of its roles allows in all slices.",
		func(o observed) int32 { return toInt32(o.Tolerated(int(o.GetReplicas()))) }),
	{newDesc("workload_hold_drifted", "1 while another client's rolling update configuration is in effect instead of the driver's."),
		func(o observed) (float64, bool) {
			if record.SameRolling(o.Stable.Rolling, o.Record.LastSet()) {
				return 0, true
			}
			return 1, true
		}},
	countGauge("release_batches", "Batches of the release's policy; 0 without a release.", func(o observed) int32 { return o.GetBatches() }),
	countGauge("release_batch", "The batch requested last, from 1; 0 before the first.", func(o observed) int32 {
		if o.CurrentBatch == nil {
			return 0
		}
		return o.GetCurrentBatch() + 1
	}),
	countGauge("release_planned_groups", "Groups at the update revision that the current target requests.", func(o observed) int32 { return o.GetPlanned() }),
	countGauge("release_updated_groups", "Groups that exist at the update revision.", func(o observed) int32 { return o.GetUpdated() }),
	countGauge("release_updated_ready_groups", "Groups at the update revision that have been ready for minReady.",
		func(o observed) int32 { return o.GetUpdatedReady() }),
	countGauge("release_stable_ready_groups", "Ready groups of the workload at other revisions.", func(o observed) int32 { return o.GetStableReady() }),
	{newDesc("release_requested_weight_ratio", "Share of requests that the host requested for the update revision. None without traffic."),
		func(o observed) (float64, bool) {
			return float64(o.GetRequestedWeight()) / 100, o.RequestedWeight != nil
		}},
	{newDesc("release_weight_ratio", "Share of requests that the update revision receives."),
		func(o observed) (float64, bool) { return float64(o.GetTrafficWeight()) / 100, true }},
	timestampGauge("release_start_timestamp_seconds", "When the release began.",
		func(o observed) *timestamppb.Timestamp { return o.GetStartTime() }),
	timestampGauge("release_progress_timestamp_seconds", "When a group last became ready, or the target changed.",
		func(o observed) *timestamppb.Timestamp { return o.GetProgressTime() }),
	timestampGauge("release_deadline_timestamp_seconds", "When the release fails without progress. None while it is paused.",
		func(o observed) *timestamppb.Timestamp { return o.GetDeadline() }),
}

// roleGauge is one metric of a role of a DisaggregatedSet.
type roleGauge struct {
	desc  *prometheus.Desc
	value func(*pb.Role) int32
}

var roleGauges = []roleGauge{
	{newDesc("workload_role_replicas", "Requested groups of a role of a DisaggregatedSet.", "role"), (*pb.Role).GetReplicas},
	{
		newDesc("workload_role_ready_groups", "Ready groups of a role, at the stable and the update revision.", "role"),
		func(r *pb.Role) int32 { return r.GetStableReady() + r.GetUpdatedReady() },
	},
	{newDesc("release_role_planned_groups", "Groups of a role at the update revision that the current target requests.", "role"), (*pb.Role).GetPlanned},
	{newDesc("release_role_updated_ready_groups", "Ready groups of a role at the update revision.", "role"), (*pb.Role).GetUpdatedReady},
}

// readyGroups counts regardless of the policy's minReady, unlike the counts of a release.
func (o observed) readyGroups() int32 {
	n := 0
	for _, w := range o.Workloads() {
		for _, g := range w.Groups {
			if g.Ready {
				n++
			}
		}
	}
	return toInt32(n)
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lockstep_"+name, help, append([]string{"namespace", "workload"}, labels...), nil)
}

func countGauge(name, help string, of func(observed) int32) releaseGauge {
	return releaseGauge{newDesc(name, help), func(o observed) (float64, bool) { return float64(of(o)), true }}
}

func timestampGauge(name, help string, of func(observed) *timestamppb.Timestamp) releaseGauge {
	return releaseGauge{newDesc(name, help), func(o observed) (float64, bool) {
		t := of(o)
		return float64(t.GetSeconds()), t != nil
	}}
}

// Describe implements prometheus.Collector.
func (releaseMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- driverReady
	to <- releaseState
	for _, g := range releaseGauges {
		to <- g.desc
	}
	for _, g := range roleGauges {
		to <- g.desc
	}
}

// Collect implements prometheus.Collector. A workload that can't be observed has its state only.
func (m releaseMetrics) Collect(to chan<- prometheus.Metric) {
	d := m.driver
	if !d.Synced() {
		to <- prometheus.MustNewConstMetric(driverReady, prometheus.GaugeValue, 0)
		return
	}
	to <- prometheus.MustNewConstMetric(driverReady, prometheus.GaugeValue, 1)
	for _, key := range d.engine.Observer.Held() {
		if !d.engine.Covers(key) {
			continue
		}
		c, s, err := d.contextOf(key, "", false)
		if err != nil {
			c = failedContext(key, err)
		}
		state := strings.TrimPrefix(c.GetState().String(), "STATE_")
		to <- prometheus.MustNewConstMetric(releaseState, prometheus.GaugeValue, 1, key.Namespace, key.Name, state, c.GetReason())
		if s == nil || s.Record == nil {
			continue
		}
		for _, g := range releaseGauges {
			if value, ok := g.value(observed{c, s}); ok {
				to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, key.Namespace, key.Name)
			}
		}
		for _, role := range c.GetRoles() {
			for _, g := range roleGauges {
				to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(role)), key.Namespace, key.Name, role.GetName())
			}
		}
	}
}
