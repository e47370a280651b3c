// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// keeper is a driver with a history that a test chose.
type keeper struct {
	*plugintest.FakeDriver

	response *pb.ListRevisionsResponse
	undone   []string
	refusal  error
}

func (k *keeper) GetDriverInfo(ctx context.Context, req *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info, err := k.FakeDriver.GetDriverInfo(ctx, req)
	info.Capabilities = append(info.GetCapabilities(), pb.Capability_CAPABILITY_LIST_REVISIONS, pb.Capability_CAPABILITY_UNDO)
	return info, err
}

func (k *keeper) ListRevisions(context.Context, *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	return k.response, nil
}

func (k *keeper) Undo(_ context.Context, req *pb.UndoRequest) (*pb.UndoResponse, error) {
	k.undone = append(k.undone, req.GetRevision())
	if k.refusal != nil {
		return nil, k.refusal
	}
	return &pb.UndoResponse{Action: pb.Action_ACTION_CONFIGURED, Revision: "a"}, nil
}

// keeperAt serves a history: revision a served once, b was rolled back, c serves, and d waits for a release.
func keeperAt(t *testing.T) (*keeper, string) {
	t.Helper()
	k := &keeper{FakeDriver: plugintest.NewFakeDriver(), response: &pb.ListRevisionsResponse{
		Revisions: []*pb.Revision{
			{Name: "d", Current: true, Template: `{"image":"v4","size":2}`},
			{Name: "c", Number: 3, Stable: true, Template: `{"image":"v3","size":2}`, Outcome: pb.State_STATE_COMPLETED, ReleaseId: "r3"},
			{Name: "b", Number: 2, Template: `{"image":"v2","size":2}`, Problem: "somebody edited it"},
			{Name: "a", Number: 1, Template: `{"image":"v1","size":2}`},
		},
		Warnings: []*pb.Warning{{Code: "HistoryNotWritten", Message: "the history is not complete"}},
	}}
	k.SetWorkload("default", "vllm", 2, "c")
	return k, plugintest.Serve(t, k, nil)
}

func TestHistoryCommands(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stdout []string
		stderr []string
		undone string
	}{
		"history": {
			[]string{"history", "vllm"}, exit.OK, []string{"*  3", "promoted", "waits for a release"},
			[]string{"not complete [HistoryNotWritten]", "revision 2: somebody edited it"}, "",
		},
		"diff of what waits":     {[]string{"diff", "vllm"}, exit.OK, []string{"--- revision 3\n+++ revision d\n", "-image: v3\n+image: v4\n"}, nil, ""},
		"diff from one":          {[]string{"diff", "vllm", "a"}, exit.OK, []string{"--- revision 1\n+++ revision d\n", "-image: v1\n+image: v4\n"}, nil, ""},
		"diff of two":            {[]string{"diff", "vllm", "1", "c"}, exit.OK, []string{"--- revision 1\n+++ revision 3\n", "-image: v1\n+image: v3\n"}, nil, ""},
		"diff of too many":       {[]string{"diff", "vllm", "1", "2", "3"}, exit.Usage, nil, []string{"at most two revisions"}, ""},
		"diff of one unknown":    {[]string{"diff", "vllm", "7"}, exit.Error, nil, []string{"no revision 7", "d 3 2 1", "lockstep history vllm"}, ""},
		"undo":                   {[]string{"undo", "vllm"}, exit.OK, []string{"revision a is back, and waits for a release"}, nil, "[]"},
		"undo to a number":       {[]string{"undo", "vllm", "--to-revision", "1"}, exit.OK, []string{"is back"}, nil, "[a]"},
		"undo to one unknown":    {[]string{"undo", "vllm", "--to-revision", "7"}, exit.Error, nil, []string{"no revision 7"}, ""},
		"undo of which to which": {[]string{"undo"}, exit.Usage, nil, []string{"name of one LeaderWorkerSet"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, address := keeperAt(t)
			got := runProgram(deadline(t), t, address, tt.args...)
			if got.code != tt.code {
				t.Errorf("exit code %d, want %d: %s%s", got.code, tt.code, got.stdout, got.stderr)
			}
			for _, words := range tt.stdout {
				if !strings.Contains(got.stdout, words) {
					t.Errorf("stdout does not say %q:\n%s", words, got.stdout)
				}
			}
			for _, words := range tt.stderr {
				if !strings.Contains(got.stderr, words) {
					t.Errorf("stderr does not say %q:\n%s", words, got.stderr)
				}
			}
			if undone := strings.Join(k.undone, ","); (tt.undone == "") != (len(k.undone) == 0) || tt.undone != "" && "["+undone+"]" != tt.undone {
				t.Errorf("asked for %q, want %q", k.undone, tt.undone)
			}
		})
	}
}

// Programs get the answer of the contract; a refusal says what to do.
func TestHistoryForPrograms(t *testing.T) {
	t.Parallel()
	k, address := keeperAt(t)
	for _, format := range []string{"json", "yaml"} {
		got := runProgram(deadline(t), t, address, "history", "vllm", "-o", format)
		if got.code != exit.OK || !strings.Contains(got.stdout, "STATE_COMPLETED") {
			t.Errorf("%s: %+v", format, got)
		}
		if format == "json" && !json.Valid([]byte(got.stdout)) {
			t.Errorf("no JSON: %s", got.stdout)
		}
	}
	k.refusal = drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release r4 is not over")
	if got := runProgram(deadline(t), t, address, "undo", "vllm"); got.code != exit.Error ||
		!strings.Contains(got.stderr, "RELEASE_IN_PROGRESS") || !strings.Contains(got.stderr, "lockstep abort vllm") {
		t.Errorf("a refusal: %+v", got)
	}
}
