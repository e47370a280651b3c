// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// historian is a driver with a given history.
type historian struct {
	*plugintest.FakeDriver

	response *pb.ListRevisionsResponse
	undone   []string
	refusal  error
	loses    bool // the first answer to Undo
}

func (h *historian) GetDriverInfo(ctx context.Context, req *pb.GetDriverInfoRequest) (*pb.GetDriverInfoResponse, error) {
	info, err := h.FakeDriver.GetDriverInfo(ctx, req)
	info.Capabilities = append(info.GetCapabilities(), pb.Capability_CAPABILITY_LIST_REVISIONS, pb.Capability_CAPABILITY_UNDO)
	return info, err
}

func (h *historian) ListRevisions(context.Context, *pb.ListRevisionsRequest) (*pb.ListRevisionsResponse, error) {
	return h.response, nil
}

func (h *historian) Undo(_ context.Context, req *pb.UndoRequest) (*pb.UndoResponse, error) {
	h.undone = append(h.undone, req.GetRevision()+"@"+req.GetTemplateRevision())
	if h.loses {
		h.loses = false
		h.Set("default", "vllm", func(c *pb.BatchContext) { c.TemplateRevision = "a" })
		return nil, status.Error(codes.Unavailable, "the connection is closed")
	}
	if h.refusal != nil {
		return nil, h.refusal
	}
	return &pb.UndoResponse{Action: pb.Action_ACTION_CONFIGURED, Revision: "a"}, nil
}

// serveHistory serves a history: revision a was promoted, b rolled back, c is stable, and d waits for a release.
func serveHistory(t *testing.T, runs string) (*historian, string) {
	t.Helper()
	h := &historian{FakeDriver: plugintest.NewFakeDriver(), response: &pb.ListRevisionsResponse{
		Revisions: []*pb.Revision{
			{Name: "d", Current: true, Template: `{"image":"v4","size":2}`},
			{Name: "c", Number: 3, Stable: true, Template: `{"image":"v3","size":2}`, Outcome: pb.State_STATE_COMPLETED, ReleaseId: "r3"},
			{Name: "b", Number: 2, Template: `{"image":"v2","size":2}`, Problem: "it was edited"},
			{Name: "a", Number: 1, Template: `{"image":"v1","size":2}`},
		},
		Warnings: []*pb.Warning{{Code: "HistoryNotWritten", Message: "the history is not complete"}},
	}}
	h.SetWorkload("default", "vllm", 2, "c")
	h.Set("default", "vllm", func(c *pb.BatchContext) {
		c.Groups = []*pb.Group{{Leader: "vllm-0", Pods: 1, Role: pb.GroupRole_GROUP_ROLE_STABLE, Revision: runs}}
	})
	return h, plugintest.Serve(t, h, nil)
}

func TestHistoryCommands(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args   []string
		code   int
		stdout []string
		stderr []string
		undone string
		// runs is what the groups run, c by default.
		runs string
	}{
		"history": {
			[]string{"history", "vllm"}, exit.OK, []string{"*  3", "promoted", "waits for a release"},
			[]string{"not complete [HistoryNotWritten]", "revision 2: it was edited"}, "", "",
		},
		"diff of a waiting template":  {[]string{"history", "vllm", "--diff"}, exit.OK, []string{"--- revision 3\n+++ revision d\n", "-image: v3\n+image: v4\n"}, nil, "", ""},
		"diff from one revision":      {[]string{"history", "vllm", "a", "--diff"}, exit.OK, []string{"--- revision 1\n+++ revision d\n", "-image: v1\n+image: v4\n"}, nil, "", ""},
		"diff of two revisions":       {[]string{"history", "vllm", "1", "c", "--diff"}, exit.OK, []string{"--- revision 1\n+++ revision 3\n", "-image: v1\n+image: v3\n"}, nil, "", ""},
		"diff of three revisions":     {[]string{"history", "vllm", "1", "2", "3", "--diff"}, exit.Usage, nil, []string{"at most two revisions"}, "", ""},
		"diff of an unknown revision": {[]string{"history", "vllm", "7", "--diff"}, exit.Error, nil, []string{"no revision 7", "d 3 2 1", "lockstep history vllm"}, "", ""},
		"revision without --diff":     {[]string{"history", "vllm", "1"}, exit.Usage, nil, []string{"needs --diff"}, "", ""},
		"diff as a document":          {[]string{"history", "vllm", "--diff", "-o", "json"}, exit.Usage, nil, []string{"exclude each other"}, "", ""},
		"undo":                        {[]string{"undo", "vllm"}, exit.OK, []string{"restored the template of revision a: it waits for a release"}, nil, "[@c]", ""},
		"undo to what the groups run": {args: []string{"undo", "vllm"}, stdout: []string{"revision a, run by all groups: there is nothing to release"}, undone: "[@c]", runs: "a"},
		"undo to a number":            {[]string{"undo", "vllm", "--to-revision", "1"}, exit.OK, []string{"restored"}, nil, "[a@]", ""},
		"undo to an unknown revision": {[]string{"undo", "vllm", "--to-revision", "7"}, exit.Error, nil, []string{"no revision 7"}, "", ""},
		"undo without name":           {[]string{"undo"}, exit.Usage, nil, []string{"name of one LeaderWorkerSet"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, address := serveHistory(t, cmp.Or(tt.runs, "c"))
			got := runProgram(deadline(t), t, address, tt.args...)
			assert.Equal(t, tt.code, got.code, "exit code %d, want %d: %s%s", got.code, tt.code, got.stdout, got.stderr)
			for _, words := range tt.stdout {
				assert.Contains(t, got.stdout, words, "stdout lacks %q:\n%s", words, got.stdout)
			}
			for _, words := range tt.stderr {
				assert.Contains(t, got.stderr, words, "stderr lacks %q:\n%s", words, got.stderr)
			}
			if undone := strings.Join(h.undone, ","); (tt.undone == "") != (len(h.undone) == 0) || tt.undone != "" && "["+undone+"]" != tt.undone {
				t.Errorf("restored %q, want %q", h.undone, tt.undone)
			}
		})
	}
}

// A retry is about the template that the first request was about, and the next command about the present one.
func TestUndoOnceIfTheAnswerIsLost(t *testing.T) {
	t.Parallel()
	h, address := serveHistory(t, "c")
	h.loses = true
	for range 2 {
		assert.Equal(t, exit.OK, runProgram(deadline(t), t, address, "undo", "vllm").code)
	}
	assert.Equal(t, []string{"@c", "@c", "@a"}, h.undone)
}

// With -o the output is the contract's response. A refusal says what to do.
func TestHistoryDocuments(t *testing.T) {
	t.Parallel()
	h, address := serveHistory(t, "c")
	for _, format := range []string{"json", "yaml"} {
		got := runProgram(deadline(t), t, address, "history", "vllm", "-o", format)
		assert.True(t, got.code == exit.OK && strings.Contains(got.stdout, "STATE_COMPLETED"), "%s: %+v", format, got)
		assert.False(t, format == "json" && !json.Valid([]byte(got.stdout)), "invalid JSON: %s", got.stdout)
	}
	h.refusal = drivererr.New(pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS, "release r4 is not over")
	got := runProgram(deadline(t), t, address, "undo", "vllm")
	assert.True(t, got.code == exit.Error && strings.Contains(got.stderr, "RELEASE_IN_PROGRESS") && strings.Contains(got.stderr, "lockstep abort vllm"),
		"a refusal: %+v", got)
	h.refusal = drivererr.New(pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND, "the history has no revision that served before a")
	got = runProgram(deadline(t), t, address, "undo", "vllm")
	assert.Contains(t, got.stderr, "\n  to see its revisions: lockstep history vllm", "without an earlier revision: %+v", got)
}
