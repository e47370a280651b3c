// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package argo

import (
	"context"
	"log/slog"
	"testing"

	"github.com/argoproj/argo-rollouts/utils/plugin/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// undoer is a driver that brings templates back, as long as nothing keeps it from that.
type undoer struct {
	Driver

	rpc   *rpcFixture
	err   error
	asked []string
}

func (u *undoer) Has(c pb.Capability) bool {
	return c == pb.Capability_CAPABILITY_UNDO || u.Driver.Has(c)
}

func (u *undoer) Call(ctx context.Context, request proto.Message) (*pb.BatchContext, error) {
	r, ok := request.(*pb.UndoRequest)
	if !ok {
		return u.Driver.Call(ctx, request)
	}
	u.asked = append(u.asked, r.GetRevision())
	if u.err == nil {
		u.rpc.fake.SetWorkload(r.GetWorkload().GetNamespace(), r.GetWorkload().GetName(), 4, r.GetRevision())
	}
	return nil, u.err
}

// `kubectl argo rollouts undo` gives the Rollout an older pod template. Its step brings the workload's template back that
// this one stood for, and releases it; what can't be brought back fails the step at once and says what to do.
func TestUndoOverTheWire(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err   error
		phase types.StepPhase
		says  []string
		stays string
		tries int
	}{
		"it is there": {nil, types.PhaseSuccessful, nil, "t0", 1},
		"it is forgotten": {
			drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, "the history of ns/w has no revision t0"),
			types.PhaseFailed, []string{"has no revision t0", "retry rollout ro"}, "t2", 1,
		},
		"it was edited": {
			drivererr.New(pb.ErrorReason_ERROR_REASON_RECORD_INVALID, "ControllerRevision ns/x can't be trusted"),
			types.PhaseFailed, []string{"can't be trusted", "retry rollout ro"}, "t2", 1,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newRPCFixture(t)
			b.edited()
			driver := &undoer{Driver: b.driver, rpc: b, err: test.err}
			step := &Plugin{Driver: driver, Logger: slog.New(slog.DiscardHandler), Waits: make(chan struct{}, 1), Context: t.Context()}
			ro := b.rollout(0, quarters...)
			ro.Spec.Template.Annotations[AnnotationRevision] = "t0"
			ro.Status.CurrentPodHash = "h0"
			got, err := step.Run(ro, &types.RpcStepContext{PluginName: PluginName})
			require.True(t, !err.HasError() && got.Phase == test.phase, "got %+v, %v", got, err)
			for _, words := range test.says {
				assert.Contains(t, got.Message, words)
			}
			assert.True(t, len(driver.asked) == test.tries && driver.asked[0] == "t0", "asked for %v", driver.asked)
			c := b.context()
			assert.True(t, c.GetTemplateRevision() == test.stays && (c.GetReleaseId() != "") == (test.err == nil), "stands at %v", c)
		})
	}
}
