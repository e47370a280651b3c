// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Explain describes an error of the driver: what failed, why, the reason in brackets, a line per invalid field, and what to
// do. It wraps other errors with what failed.
func Explain(err error, what string, hints Hints) error {
	if err == nil {
		return nil
	}
	s, ok := statusOf(err)
	if !ok {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	reason := drivererr.Reason(s.Err())
	lines := []string{fmt.Sprintf("cannot %s: %s [%s]", what, messageOf(err, s), bracket(reason, s.Code()))}
	violations := drivererr.Violations(s.Err())
	if len(violations) > 0 {
		lines[0] = fmt.Sprintf("cannot %s: the request is invalid [%s]", what, bracket(reason, s.Code()))
	}
	for _, v := range violations {
		lines = append(lines, fmt.Sprintf("  %s: %s", v.Field, v.Description))
	}
	if reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED && s.Code() == codes.Unavailable {
		lines = append(lines, "  what to do: check that a driver runs (lockstep serve) and listens at this address")
	}
	lines = append(lines, remedy(reason, drivererr.Metadata(s.Err()), hints)...)
	return errors.New(strings.Join(lines, "\n"))
}

// remedy returns lines that say what the user can do about a reason.
func remedy(reason pb.ErrorReason, metadata map[string]string, hints Hints) []string {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_UNSPECIFIED, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST:
		return nil
	case pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:
		lines := []string{"  to see it:   " + hints.Status, "  to abort it: " + hints.Abort}
		if id := metadata["release_id"]; id != "" {
			lines = append(lines, "  to resume it, with its own policy: --release-id "+id)
		}
		return lines
	case pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED:
		return []string{
			"  a release keeps its policy: use the same flags again",
			"  or abort it first: " + hints.Abort,
		}
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED:
		return []string{"  the template has changed; to see the status: " + hints.Status}
	case pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
		return []string{"  to list all: kubectl get leaderworkersets --all-namespaces"}
	case pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		if hints.Inside {
			return []string{"  what to do: the driver inside this command has your own permissions: ask for those of ClusterRole lockstep-driver " +
				"in config/base, of which reading commands need the reads only, or use a server with --address"}
		}
		return []string{"  what to do: " + drivererr.Advice(reason)}
	case pb.ErrorReason_ERROR_REASON_UNSUPPORTED:
		return []string{"  what to do: leave it out, or use a driver that supports it"}
	case pb.ErrorReason_ERROR_REASON_NOT_SYNCED, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE:
		return []string{"  what to do: check that the driver reaches the API server, for example with kubectl get lws"}
	default:
		return []string{"  what to do: " + drivererr.Advice(reason)}
	}
}

// bracket returns the reason as in ErrorInfo, or the gRPC code of an error without one.
func bracket(reason pb.ErrorReason, c codes.Code) string {
	if reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return strings.TrimPrefix(reason.String(), "ERROR_REASON_")
	}
	return code.Code(c).String() //nolint:gosec // There are 17 codes.
}

// statusOf returns the gRPC status in err's chain.
func statusOf(err error) (*status.Status, bool) {
	carrier, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err)
	if !ok {
		return nil, false
	}
	return carrier.GRPCStatus(), true
}

// Shorten returns an error of the driver without gRPC's own wording.
func Shorten(err error) error {
	if s, ok := statusOf(err); ok {
		return errors.New(messageOf(err, s))
	}
	return err
}

// messageOf returns err's text without gRPC's own wording.
func messageOf(err error, s *status.Status) string {
	text := strings.Replace(err.Error(), s.Err().Error(), s.Message(), 1)
	if before, dialing, found := strings.Cut(text, `connection error: desc = "transport: Error while dialing: `); found {
		return before + strings.TrimSuffix(dialing, `"`)
	}
	return text
}
