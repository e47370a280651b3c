// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package lwsdriver

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// releaseMetrics collects the state of each adopted workload when it is scraped, from the caches: one answer of
// CalculateBatchContext per workload, and no request to the API server. A standby collects nothing, so that a workload has one series.
type releaseMetrics struct{ driver *Driver }

// releaseGauge is one metric of a workload.
type releaseGauge struct {
	desc *prometheus.Desc
	// value returns false if the workload has no such value.
	value func(*pb.BatchContext) (float64, bool)
}

var releaseState = newDesc("release_state", "1 for the state of the release in progress, or of the last one.", "state", "reason")

var releaseGauges = []releaseGauge{
	count("workload_replicas", "Requested groups.", (*pb.BatchContext).GetReplicas),
	count("workload_ready_groups", "Ready groups of all revisions, added ones included.", func(c *pb.BatchContext) int32 {
		return c.GetStableReady() + c.GetUpdatedReady()
	}),
	count("release_batches", "Batches of the release's policy; 0 without a release.", (*pb.BatchContext).GetBatches),
	count("release_batch", "The batch requested last, from 1; 0 before the first.", func(c *pb.BatchContext) int32 {
		if c.CurrentBatch == nil {
			return 0
		}
		return c.GetCurrentBatch() + 1
	}),
	count("release_planned_groups", "Groups at the update revision that the current target requests.", (*pb.BatchContext).GetPlanned),
	count("release_updated_groups", "Groups that exist at the update revision.", (*pb.BatchContext).GetUpdated),
	count("release_updated_ready_groups", "Ready groups at the update revision.", (*pb.BatchContext).GetUpdatedReady),
	count("release_stable_ready_groups", "Ready groups of the workload at other revisions.", (*pb.BatchContext).GetStableReady),
	{newDesc("release_requested_weight_ratio", "Share of requests that the host requested for the update revision. None without traffic."),
		func(c *pb.BatchContext) (float64, bool) {
			return float64(c.GetRequestedWeight()) / 100, c.RequestedWeight != nil
		}},
	{newDesc("release_weight_ratio", "Share of requests that the update revision receives."),
		func(c *pb.BatchContext) (float64, bool) { return float64(c.GetTrafficWeight()) / 100, true }},
	timestamp("release_start_timestamp_seconds", "When the release began.", (*pb.BatchContext).GetStartTime),
	timestamp("release_progress_timestamp_seconds", "When a group last became ready, or the target changed.", (*pb.BatchContext).GetProgressTime),
	timestamp("release_deadline_timestamp_seconds", "When the release fails without progress. None while it is paused.", (*pb.BatchContext).GetDeadline),
}

func newDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("lockstep_"+name, help, append([]string{"namespace", "workload"}, labels...), nil)
}

func count(name, help string, of func(*pb.BatchContext) int32) releaseGauge {
	return releaseGauge{newDesc(name, help), func(c *pb.BatchContext) (float64, bool) { return float64(of(c)), true }}
}

func timestamp(name, help string, of func(*pb.BatchContext) *timestamppb.Timestamp) releaseGauge {
	return releaseGauge{newDesc(name, help), func(c *pb.BatchContext) (float64, bool) {
		t := of(c)
		return float64(t.GetSeconds()), t != nil
	}}
}

// Describe implements prometheus.Collector.
func (releaseMetrics) Describe(to chan<- *prometheus.Desc) {
	to <- releaseState
	for _, g := range releaseGauges {
		to <- g.desc
	}
}

// Collect implements prometheus.Collector.
func (m releaseMetrics) Collect(to chan<- prometheus.Metric) {
	d := m.driver
	if !d.options.election.isLeader() || !d.Synced() {
		return
	}
	for _, key := range d.heldWorkloads() {
		if !d.engine.Covers(key) {
			continue
		}
		c := d.stateOf(key, false)
		namespace, name := c.GetWorkload().GetNamespace(), c.GetWorkload().GetName()
		state := strings.TrimPrefix(c.GetState().String(), "STATE_")
		to <- prometheus.MustNewConstMetric(releaseState, prometheus.GaugeValue, 1, namespace, name, state, c.GetReason())
		for _, g := range releaseGauges {
			if value, ok := g.value(c); ok {
				to <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, value, namespace, name)
			}
		}
	}
}
