// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package drivererr

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const specPath = "../../proto/lockstep/v1alpha1/SPEC.md"

// row is what SPEC.md and the function must agree on.
type row struct {
	Code   string
	Advice string
}

func TestSpecTableMatchesFunction(t *testing.T) {
	spec := readSpecTable(t)
	got := make(map[string]row)
	for number := range pb.ErrorReason_name {
		reason := pb.ErrorReason(number)
		if reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
			continue
		}
		got[Name(reason)] = row{Code: codeName(Code(reason)), Advice: Advice(reason)}
	}
	assert.Empty(t, cmp.Diff(spec, got), "the table in SPEC.md (-) and drivererr (+) differ")
}

// readSpecTable returns the error table's rows by reason and fails on a reason with two rows.
func readSpecTable(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile(specPath)
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| reason | gRPC code | when | what the caller does |\n")
	require.True(t, found, "%s has no error table", specPath)
	rows := make(map[string]row)
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 {
			break
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		if cells[0] == "---" {
			continue
		}
		_, twice := rows[cells[0]]
		assert.False(t, twice, "reason %s has two rows", cells[0])
		assert.NotEmpty(t, cells[2], "reason %s does not say when", cells[0])
		rows[cells[0]] = row{Code: cells[1], Advice: cells[3]}
	}
	return rows
}

// codeName is the spelling of the gRPC specification, which is what SPEC.md uses.
func codeName(code codes.Code) string {
	return map[codes.Code]string{
		codes.InvalidArgument:    "INVALID_ARGUMENT",
		codes.NotFound:           "NOT_FOUND",
		codes.FailedPrecondition: "FAILED_PRECONDITION",
		codes.Aborted:            "ABORTED",
		codes.Unavailable:        "UNAVAILABLE",
		codes.Unimplemented:      "UNIMPLEMENTED",
		codes.Unauthenticated:    "UNAUTHENTICATED",
		codes.PermissionDenied:   "PERMISSION_DENIED",
		codes.ResourceExhausted:  "RESOURCE_EXHAUSTED",
		codes.Internal:           "INTERNAL",
	}[code]
}
