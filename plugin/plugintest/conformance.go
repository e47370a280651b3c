// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugintest

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/plugin"
)

// Subject is the workload that Conformance releases.
type Subject struct {
	// Workload exists, is not adopted, and is at rest. Required.
	Workload *pb.WorkloadRef
	// Policy has at least one batch, and its first asks for at least one group. Required.
	Policy *pb.ReleasePolicy
	// ReleaseID is the id to use. Empty means "conformance".
	ReleaseID string
	// Change gives the workload a new template. It is called once, under hold. Required.
	Change func(ctx context.Context) error
	// Timeout bounds each wait for the driver to settle. Zero means one minute.
	Timeout time.Duration
}

// Conformance drives one release to its rollback and checks the promises of SPEC.md that are visible to a host: repeated
// RPCs change nothing, error reasons, targets that never decrease, an end that is final. It leaves the workload at rest, with
// the new template.
func Conformance(t *testing.T, client *plugin.Client, subject Subject) {
	t.Helper()
	if subject.ReleaseID == "" {
		subject.ReleaseID = "conformance"
	}
	if subject.Timeout == 0 {
		subject.Timeout = time.Minute
	}
	r := &run{client: client, Subject: subject}
	steps := []struct {
		name string
		step func(*testing.T)
	}{
		{"requests that are wrong", r.refusals},
		{"adopt", r.adopt},
		{"initialize", r.initialize},
		{"upgrade", r.upgrade},
		{"read", r.read},
		{"finalize", r.finalize},
		{"disown", r.disown},
	}
	for _, s := range steps {
		if !t.Run(s.name, s.step) {
			return
		}
	}
}

// Acted is a response with an action.
type Acted interface {
	proto.Message
	GetAction() pb.Action
}

// Idempotent makes a call, waits with wait, makes the call again, and fails unless the second one changed nothing.
// It returns the second response. A nil wait waits for nothing.
func Idempotent[Req any, Resp Acted](
	t testing.TB, wait func(testing.TB), call func(context.Context, Req) (Resp, error), req Req,
) Resp {
	t.Helper()
	if _, err := call(t.Context(), req); err != nil {
		t.Fatalf("first call: %v", err)
	}
	if wait != nil {
		wait(t)
	}
	resp, err := call(t.Context(), req)
	if err != nil {
		t.Fatalf("second call: %v", err)
	}
	if got := resp.GetAction(); got != pb.Action_ACTION_UNCHANGED {
		t.Errorf("action of the second call is %v, want UNCHANGED", got)
	}
	return resp
}

// WantReason fails unless err carries the reason.
func WantReason(t testing.TB, err error, want pb.ErrorReason) {
	t.Helper()
	if got := plugin.Reason(err); got != want {
		t.Errorf("reason is %v (%v), want %v", got, err, want)
	}
}
