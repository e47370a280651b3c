// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package workload has the commands about a LeaderWorkerSet. Release, promote, abort, undo, adopt and disown change it;
// status, watch, history and debug show it. Plan and preflight check a release before it starts.
//
//	root.AddCommand(workload.Commands(options)...)
package workload

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
)

const releaseAbout = `Release the new template of a LeaderWorkerSet batch by batch, and promote it. The workload is adopted if necessary, but adopt
it before you change its template: without hold LeaderWorkerSet rolls out a change at once.

The next batch, or the promotion, starts after --pause, and once the gates have passed: queries to Prometheus that are measured
after each batch. If the template changes, the release starts again at batch 1.

With --service and a route the release also splits requests. Once the groups of a batch are ready, its weight is requested;
the batch is ready, and its pause starts, when every gateway has acknowledged exactly that weight. The default weight is the
batch's share of groups, rounded up, also after scaling. A batch of 0 groups has weight 0, and in style partition a batch of
all groups has weight 100. Headers and cookies apply from the first ready batch to the end, whatever the weight. Weights,
headers and cookies are not part of a policy: another run may set others. If the driver cannot split requests, the release
does not start (UNSUPPORTED). Promotion and rollback return all requests to the workload.

When the release fails, for example because no group became ready within --progress-deadline, --on-failure decides:

- pause (default): leave the release as it is and exit with code 3
- rollback: roll it back and exit with code 4
- wait: wait until it recovers, and continue

When a gate fails, the release is rolled back (exit code 4), or stays where it is with --on-gate-failure pause (exit code 3).

You can stop the command at any time: the release stays where it is, and the same command resumes it. Ctrl-C prints how to
resume, promote or abort; a second one ends the command at once. Exit codes: lockstep help exit-codes.`

const releaseExample = `  lockstep release vllm --batches 25%,50%,100% --pause 5m
  lockstep release vllm --batches 1,2,4 --on-failure rollback
  lockstep release vllm --batches 25%,50%,100% --service vllm-leader --http-route vllm --weights 10,50,100
  lockstep release vllm --batches 25%,100% --gate vllm-ttft=1.3 --gate vllm-errors --prometheus http://localhost:9090
  lockstep release vllm --policy policy.yaml --no-promote -o json --final`

type releaseFlags struct {
	session.Flags

	policy    policyFlags
	gates     gateFlags
	id        string
	pause     time.Duration
	noPromote bool
	onFailure string
}

func newReleaseCommand(o *connect.Options) *cobra.Command {
	var f releaseFlags
	var release host.Release
	var metrics host.Metrics
	cmd := f.Command(o, &cobra.Command{
		Use:     "release NAME",
		Short:   "Release a workload's new template batch by batch, and follow it",
		Long:    releaseAbout,
		Example: releaseExample,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if release, err = f.release(); err == nil {
				metrics, err = f.gates.metrics(release.Gates)
			}
			return err
		},
	}, func(s *session.Session) error {
		release.Workload, s.Host.Metrics = s.Ref, metrics
		result, err := s.Host.Release(s.Context, release)
		return s.Conclude(result, err, "release", host.OutcomePromoted, host.OutcomeNothing, host.OutcomeLastBatch)
	})
	f.add(cmd)
	return cmd
}

func (f *releaseFlags) add(cmd *cobra.Command) {
	f.policy.add(cmd)
	f.gates.add(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.pause, "pause", 0, "how long a batch must have been ready before this command starts the next one, or the promotion unless the batch has all groups")
	flags.StringVar(&f.id, "release-id", "",
		"id of the release (default: that of your unfinished release of this workload, else a new one)")
	flags.BoolVar(&f.noPromote, "no-promote", false, "stop when the last batch is ready")
	flags.StringVar(&f.onFailure, "on-failure", string(host.OnFailurePause),
		"what to do when the release fails: pause, rollback or wait")
	complete(cmd, "on-failure", "pause", "rollback", "wait")
	f.AddRetryFor(cmd)
	f.Output.Add(cmd)
	f.Output.AddFinal(cmd)
}

// release returns the release of the flags.
func (f *releaseFlags) release() (host.Release, error) {
	policy, err := f.policy.policy()
	if err != nil {
		return host.Release{}, err
	}
	weights, err := f.policy.traffic.parseWeights(policy)
	if err != nil {
		return host.Release{}, err
	}
	headers, err := f.policy.traffic.headerRoutes(policy)
	if err != nil {
		return host.Release{}, err
	}
	if f.pause < 0 {
		return host.Release{}, exit.Usagef("--pause %s: want 0 or more", f.pause)
	}
	onFailure := host.OnFailure(f.onFailure)
	switch onFailure {
	case host.OnFailurePause, host.OnFailureRollback, host.OnFailureWait:
	default:
		return host.Release{}, exit.Usagef("--on-failure %q: want pause, rollback or wait", f.onFailure)
	}
	gates, err := f.gates.gates(f.policy.gates)
	if err != nil {
		return host.Release{}, err
	}
	onGateFailure, err := f.gates.reaction()
	if err != nil {
		return host.Release{}, err
	}
	return host.Release{
		ID: f.id, NewID: newReleaseID, Owner: owner(), Policy: policy, Weights: weights, HeaderRoutes: headers,
		Pause: f.pause, NoPromote: f.noPromote, OnFailure: onFailure,
		Gates: gates, OnGateFailure: onGateFailure,
	}, nil
}

// newReleaseID returns an id such as "cli-20260102-150405-k3x9": it sorts by time, and is unique within a second.
func newReleaseID() string {
	return fmt.Sprintf("cli-%s-%s", time.Now().UTC().Format("20060102-150405"), strings.ToLower(rand.Text()[:4]))
}

// ownerPrefix is the prefix of owner.
const ownerPrefix = "lockstep-cli/"

// owner identifies the user and the machine, as in "lockstep-cli/jo@laptop", in at most 253 bytes.
func owner() string {
	name, machine := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		machine = h
	}
	text := ownerPrefix + name + "@" + machine
	return strings.ToValidUTF8(text[:min(len(text), 253)], "")
}

// Commands returns the commands.
func Commands(o *connect.Options) []*cobra.Command {
	return []*cobra.Command{
		newReleaseCommand(o),
		newPlanCommand(o),
		newPreflightCommand(o),
		newStatusCommand(o),
		newWatchCommand(o),
		newDebugCommand(o),
		newHistoryCommand(o),
		newPromoteCommand(o),
		newAbortCommand(o),
		newUndoCommand(o),
		newAdoptCommand(o),
		newDisownCommand(o),
	}
}

// complete registers the values that the shell offers for a flag.
func complete(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
