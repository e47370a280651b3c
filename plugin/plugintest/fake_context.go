// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"errors"
	"strconv"
	"strings"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// count fills in the numbers of groups. Those of a partition replace others, those of a canary are in addition.
func count(c *pb.BatchContext) {
	c.Desired, c.Updated, c.UpdatedReady = c.GetPlanned(), c.GetPlanned(), c.GetPlanned()
	c.StableReady, c.Total = c.GetReplicas(), c.GetReplicas()
	if c.GetStyle() == pb.Style_STYLE_PARTITION {
		c.StableReady -= c.GetPlanned()
	} else {
		c.Total += c.GetPlanned()
	}
	if !routed(c) {
		c.TrafficWeight = 100 * c.GetPlanned() / max(c.GetTotal(), 1)
	}
}

// clearBatch removes what batches have left.
func clearBatch(c *pb.BatchContext) {
	c.CurrentBatch, c.Target, c.Planned, c.TrafficWeight = nil, "", 0, 0
	count(c)
}

func routed(c *pb.BatchContext) bool {
	return c.GetTrafficBasis() == pb.TrafficBasis_TRAFFIC_BASIS_ROUTED
}

func ended(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_COMPLETED || c.GetState() == pb.State_STATE_ROLLED_BACK
}

func finalizing(c *pb.BatchContext) bool {
	return c.GetState() == pb.State_STATE_PROMOTING || c.GetState() == pb.State_STATE_ROLLING_BACK || ended(c)
}

// groups resolves "3" or "25%" of replicas, rounded up and clamped.
func groups(target string, replicas int32) (int32, error) {
	number, percent := strings.CutSuffix(target, "%")
	value, err := strconv.ParseInt(number, 10, 32)
	if err != nil || value < 0 || (percent && value > 100) {
		return 0, errors.New("want a count, or a percentage from 0% to 100%")
	}
	if percent {
		value = (value*int64(replicas) + 99) / 100
	}
	return min(int32(value), replicas), nil
}
