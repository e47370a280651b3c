// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// style is a release style, for tests that run in each.
type style struct {
	name string
	pb   pb.Style
	// handover: the second set becomes the workload. full: with traffic and an autoscaler, which are handed over.
	handover, full bool
}

var (
	canaryStyle    = style{name: "canary", pb: pb.Style_STYLE_CANARY}
	blueGreenStyle = style{name: "blue-green", pb: pb.Style_STYLE_BLUE_GREEN}
	partitionStyle = style{name: "partition", pb: pb.Style_STYLE_PARTITION}

	handoverStyle     = style{name: "handover", pb: pb.Style_STYLE_BLUE_GREEN, handover: true}
	fullHandoverStyle = style{name: "handover", pb: pb.Style_STYLE_BLUE_GREEN, handover: true, full: true}

	allStyles = []style{canaryStyle, blueGreenStyle, partitionStyle}
)

func (s style) inPlace() bool { return s == partitionStyle }

// policy returns a copy of the policy in this style.
func (s style) policy(p *pb.ReleasePolicy) *pb.ReleasePolicy {
	p = proto.CloneOf(p)
	p.Style = s.pb
	return p
}

// inStyles runs a test for each style.
func inStyles(t *testing.T, run func(*testing.T, style)) {
	t.Helper()
	t.Parallel()
	for _, s := range allStyles {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			run(t, s)
		})
	}
}
