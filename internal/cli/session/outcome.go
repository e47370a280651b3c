// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// outcomeError returns nil if a run ended as wanted, and otherwise an error with the release's status and the next commands.
func outcomeError(result host.Result, hints Hints, wanted ...host.Outcome) error {
	if slices.Contains(wanted, result.Outcome) {
		return nil
	}
	id, c := result.ReleaseID, result.Context
	switch result.Outcome {
	case host.OutcomeFailed, host.OutcomeGateFailed:
		return exit.Errorf(exit.Failed, "%s%s", result.Sentence(), nextSteps(c, hints))
	case host.OutcomeRolledBack:
		return exit.Errorf(exit.RolledBack, "%s", result.Sentence())
	case host.OutcomeInterrupted:
		return exit.Errorf(exit.Interrupted, "interrupted: %s", progressText(result, hints))
	case host.OutcomePromoted:
		return fmt.Errorf("too late: release %s is already promoted", id)
	case host.OutcomeSuperseded:
		return fmt.Errorf("%s\n  to see the status: %s", result.Sentence(), hints.Status)
	default:
		return fmt.Errorf("release %s ended as %s", id, result.Outcome)
	}
}

// progressText describes an interrupted release, with the commands that fit its state.
func progressText(result host.Result, hints Hints) string {
	c := result.Context
	// The context may be that of an older release, if the interrupted request never arrived.
	if c == nil || result.ReleaseID == "" || c.GetReleaseId() != result.ReleaseID {
		return "no release was started"
	}
	text := fmt.Sprintf("release %s of %s is %s", result.ReleaseID, plugin.WorkloadKey(c.GetWorkload()), view.StateWord(c.GetState()))
	if batch := view.BatchWord(c); batch != "-" {
		text += fmt.Sprintf(" at batch %s, %d of %d groups ready", batch, c.GetUpdatedReady(), c.GetPlanned())
	}
	return text + nextSteps(c, hints)
}

// nextSteps returns the commands that fit the release's state, one a line.
func nextSteps(c *pb.BatchContext, hints Hints) string {
	if c == nil {
		return ""
	}
	hints = hints.For(c.GetOwner())
	again := "\n  to resume:  " + hints.Again
	switch c.GetState() {
	case pb.State_STATE_FAILED:
		switch {
		case hints.Stay != "":
			again = "\n  to resume when it recovers: " + hints.Stay
		case plugin.Ending(c) && c.GetIntent() == pb.FinalizeIntent_FINALIZE_INTENT_ROLLBACK:
			return again // and there is nothing else to do
		}
		return again + "\n  to abort: " + hints.Abort
	case pb.State_STATE_PROMOTING:
		return again + intentRecorded + "\n  to abort:   " + hints.Abort
	case pb.State_STATE_ROLLING_BACK:
		return again + intentRecorded
	default:
		return again + "\n  to promote: " + hints.Promote + "\n  to abort:   " + hints.Abort
	}
}

const intentRecorded = "\n  the intent is recorded: any running driver completes it"

// Hints are command lines about the same workload and driver, ready to be pasted.
type Hints struct {
	Again, Status, Promote, Abort, History string
	// List lists the workloads of all namespaces, Check checks the API server and the user's rights.
	List, Check string
	// Reach are the flags of the driver and the namespace, for a command about another workload.
	Reach string
	// Cluster is a line that says how to see which cluster the kubeconfig names.
	Cluster string
	// Resume is Again without --release-id. Empty means that the command has no such flag.
	Resume string
	// Stay is Again with --on-failure wait. Empty means that the command has no such flag.
	Stay string
	// Revisions is true for a command that takes revisions of the history.
	Revisions bool
	// Inside is true if the driver is inside this process, with the user's own permissions.
	Inside bool
}

// For returns the hints about a release of an owner: that of another host is ended with --ignore-owner only.
func (h Hints) For(owner string) Hints {
	if host.IsOther(owner) {
		h.Abort += " --ignore-owner"
		h.Promote += " --ignore-owner"
	}
	return h
}

// hintsFor returns the hints of a parsed command line.
func hintsFor(cmd *cobra.Command, name string) Hints {
	line := func(keep func(flag string) bool, words ...string) string {
		return strings.Join(append([]string{cmd.Root().Name()}, words...), " ") + FlagsOf(cmd, keep)
	}
	reach := func(flag string) bool { return slices.Contains(Reach, flag) }
	h := Hints{
		Reach:     FlagsOf(cmd, reach),
		Cluster:   ClusterHint(cmd),
		Revisions: slices.Contains([]string{"undo", "history"}, cmd.Name()),
		// A paste repeats the command with all its flags.
		Again:   line(func(string) bool { return true }, cmd.Name(), name),
		Status:  line(reach, "status", name),
		Promote: line(reach, "promote", name),
		Abort:   line(reach, "abort", name),
		History: line(reach, "history", name),
		List:    line(func(flag string) bool { return reach(flag) && flag != "namespace" }, "status", "-A"),
		Check:   line(func(flag string) bool { return slices.Contains(Reach[:3], flag) }, "check"),
	}
	if f := cmd.Flags().Lookup("address"); f != nil {
		h.Inside = !f.Changed
	}
	if cmd.Flags().Lookup("release-id") != nil {
		h.Resume = line(func(flag string) bool { return flag != "release-id" }, cmd.Name(), name)
	}
	if cmd.Flags().Lookup("on-failure") != nil {
		h.Stay = line(func(flag string) bool { return flag != "on-failure" }, cmd.Name(), name) + " --on-failure wait"
	}
	return h
}

// ClusterHint returns a line that says how to see which cluster the command's kubeconfig names.
func ClusterHint(cmd *cobra.Command) string {
	return "  to see which cluster this is: kubectl config view --minify" +
		FlagsOf(cmd, func(flag string) bool { return slices.Contains(Reach[:2], flag) })
}

// Reach are the flags that say where a workload and its driver are.
var Reach = []string{"kubeconfig", "context", "namespace", "address", "tls-cert", "tls-key", "tls-ca", "tls-server-name", "token-file"}

// FlagsOf returns the flags of a parsed command line that keep selects, each with a space before it.
func FlagsOf(cmd *cobra.Command, keep func(flag string) bool) string {
	words := ""
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if keep(f.Name) {
			words += " " + strings.Join(flagWords(f), " ")
		}
	})
	return words
}

// flagWords returns a flag as it is typed.
func flagWords(f *pflag.Flag) []string {
	value := f.Value.String()
	// A list prints itself as CSV in brackets. What takes one value at a time parses no CSV.
	if list, ok := f.Value.(pflag.SliceValue); ok && f.Value.Type() == "stringArray" {
		words := make([]string, 0, 2*len(list.GetSlice()))
		for _, one := range list.GetSlice() {
			words = append(words, "--"+f.Name, quoteWord(one))
		}
		return words
	} else if ok {
		value = value[1 : len(value)-1]
	}
	// A boolean flag takes its value only after an equals sign.
	if f.Value.Type() == "bool" {
		if value == "true" {
			return []string{"--" + f.Name}
		}
		return []string{"--" + f.Name + "=" + value}
	}
	return []string{"--" + f.Name, quoteWord(value)}
}

// quoteWord returns a word that a POSIX shell reads as s.
func quoteWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("%+,-./:=@_", r)
	}
	// An empty word has to be quoted too.
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// explainError describes an error of the driver: what failed, why, the reason in brackets, a line per invalid field, and what to
// do. It wraps other errors with what failed.
func explainError(err error, what string, hints Hints) error {
	if err == nil {
		return nil
	}
	if unreached, ok := errors.AsType[*connect.UnreachedError](err); ok {
		return fmt.Errorf("cannot %s: %w\n%s", what, unreached, hints.Cluster)
	}
	s, ok := statusOf(err)
	if !ok {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	reason := drivererr.Reason(s.Err())
	lines := []string{fmt.Sprintf("cannot %s: %s [%s]", what, messageOf(err, s), reasonOrCode(reason, s.Code()))}
	violations := drivererr.Violations(s.Err())
	if len(violations) > 0 {
		lines[0] = fmt.Sprintf("cannot %s: the request is invalid [%s]", what, reasonOrCode(reason, s.Code()))
	}
	for _, v := range violations {
		lines = append(lines, fmt.Sprintf("  %s: %s", Given(v.Field), v.Description))
	}
	// Only a driver that was not reached has no reason.
	if reason == pb.ErrorReason_ERROR_REASON_UNSPECIFIED && s.Code() == codes.Unavailable {
		lines = append(lines, "  what to do: check that a driver runs (lockstep serve) and listens at this address")
	}
	lines = append(lines, remedyLines(reason, drivererr.Metadata(s.Err()), hints)...)
	text := strings.Join(lines, "\n")
	if len(violations) > 0 {
		return exit.Usagef("%s", text)
	}
	return errors.New(text)
}

// Given returns how a user gives a field of a request: as a flag, or as a field of the policy file.
func Given(field string) string {
	name, index, _ := strings.Cut(strings.TrimPrefix(field, "policy."), "[")
	switch name {
	case "style", "batches", "min_ready", "progress_deadline", "release_id":
		name = "--" + strings.ReplaceAll(name, "_", "-")
	case "traffic.stable_service":
		name = "--service"
	case "traffic.http_routes":
		name = "--http-route"
	case "workload.name":
		name = "NAME"
	case "workload.namespace":
		name = "--namespace"
	default:
		return strings.TrimPrefix(field, "policy.")
	}
	if position, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil {
		return fmt.Sprintf("%s, number %d", name, position+1)
	}
	return name
}

// remedyLines returns lines that say what the user can do about a reason.
func remedyLines(reason pb.ErrorReason, metadata map[string]string, hints Hints) []string {
	switch reason {
	case pb.ErrorReason_ERROR_REASON_UNSPECIFIED, pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, pb.ErrorReason_ERROR_REASON_UNSUPPORTED:
		return nil // the message says it
	case pb.ErrorReason_ERROR_REASON_RELEASE_IN_PROGRESS:
		owner := metadata["owner"]
		if host.IsOther(owner) {
			return []string{"  to see it: " + hints.Status, "  end it with " + owner + ", or if that is gone: " + hints.For(owner).Abort}
		}
		lines := []string{"  to see it:   " + hints.Status, "  to abort it: " + hints.Abort}
		if id := metadata["release_id"]; id != "" && hints.Resume != "" {
			lines = append(lines, "  to resume it, with the policy that it began with: "+hints.Resume+" --release-id "+quoteWord(id))
		}
		return lines
	case pb.ErrorReason_ERROR_REASON_RELEASE_ID_REUSED:
		lines := []string{
			"  to abort it, and begin with this policy: " + hints.Abort + " && " + hints.Resume,
			"  to promote it as it is: " + hints.Promote,
		}
		if hints.Again != hints.Resume {
			lines = append(lines, "  if it is over, to begin another one: "+hints.Resume)
		}
		return lines
	case pb.ErrorReason_ERROR_REASON_REVISION_CHANGED, pb.ErrorReason_ERROR_REASON_RELEASE_NOT_FOUND,
		pb.ErrorReason_ERROR_REASON_RELEASE_FINALIZED:
		return []string{"  to see what the release does now: " + hints.Status}
	case pb.ErrorReason_ERROR_REASON_WORKLOAD_NOT_FOUND:
		return []string{"  to list all: " + hints.List}
	case pb.ErrorReason_ERROR_REASON_REFERENCE_NOT_FOUND:
		if hints.Revisions {
			return []string{"  to see its revisions: " + hints.History}
		}
	case pb.ErrorReason_ERROR_REASON_NEWER_DRIVER:
		return []string{"  what to do: use the driver version that drives the release, or abort it: " + hints.Abort}
	case pb.ErrorReason_ERROR_REASON_FORBIDDEN:
		if hints.Inside {
			return []string{"  what to do: the driver inside this command has your own permissions: ask for those of ClusterRole lockstep-driver " +
				"in config/base, of which reading commands need the reads only, or use a server with --address", "  to see those that you lack: " + hints.Check}
		}
	case pb.ErrorReason_ERROR_REASON_NOT_SYNCED, pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE:
		if hints.Inside {
			return []string{"  to check the API server and your rights: " + hints.Check}
		}
		return []string{"  what to do: check that the driver reaches the API server"}
	default:
	}
	advice := strings.ReplaceAll(strings.TrimSuffix(drivererr.Advice(reason), "."), "policy.", "") // the policy file has no such prefix
	return []string{"  what to do: " + strings.ToLower(advice[:1]) + advice[1:]}
}

// reasonOrCode returns the reason as in ErrorInfo, or the gRPC code of an error without one.
func reasonOrCode(reason pb.ErrorReason, c codes.Code) string {
	if reason != pb.ErrorReason_ERROR_REASON_UNSPECIFIED {
		return drivererr.Name(reason)
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
	// The messages of gRPC's dialer hide the cause in a nested quotation.
	if before, dialing, found := strings.Cut(text, `connection error: desc = "transport: Error while dialing: `); found {
		return before + strings.TrimSuffix(dialing, `"`)
	}
	return text
}
