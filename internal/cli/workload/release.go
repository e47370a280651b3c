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
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/plan"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const releaseAbout = `Release the new template of a workload batch by batch, and promote it. The workload is adopted if necessary, but adopt it
before you change its template: without the hold, LeaderWorkerSet rolls out a change at once.

The next batch, or the promotion, starts once the gates have passed, which are queries to Prometheus, and after --pause. With
--service and a route each batch gets its share of requests, too. If the template changes, the release starts again at batch 1.

A release that fails is left as it is (exit code 3), rolled back (4) or waited for, as --on-failure says. A failed gate rolls it
back. Stop the command at any time: the release stays where it is, and the same command resumes it.`

const releaseExample = `  lockstep release vllm --pause 5m
  lockstep release vllm --batches 25%,50%,100% --on-failure rollback
  lockstep release vllm --service vllm-leader --http-route vllm
  lockstep release vllm --gate vllm-ttft=1.3 --gate vllm-errors --prometheus http://localhost:9090
  lockstep release vllm --policy policy.yaml --no-promote -o json`

type releaseFlags struct {
	session.Flags

	policy    policyFlags
	gates     gateFlags
	id        string
	pause     time.Duration
	noPromote bool
	onFailure host.OnFailure
}

func newReleaseCommand(o *connect.Options) *cobra.Command {
	f := newReleaseFlags()
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
		done, err := f.check(s, o, release)
		if err != nil || done {
			return err
		}
		result, err := s.Host.Release(s.Context, release)
		return s.Conclude(result, err, "release", host.OutcomePromoted, host.OutcomeNothing, host.OutcomeLastBatch)
	})
	f.add(cmd)
	return cmd
}

func newReleaseFlags() *releaseFlags {
	return &releaseFlags{onFailure: host.OnFailurePause, gates: gateFlags{onFailure: host.OnFailureRollback}}
}

func (f *releaseFlags) add(cmd *cobra.Command) {
	f.policy.add(cmd)
	f.gates.add(cmd)
	flags := cmd.Flags()
	flags.DurationVar(&f.pause, "pause", 0, "how long a batch must be ready before the next one or the promotion; after a batch of all groups only in blue-green")
	flags.StringVar(&f.id, "release-id", "",
		"id of the release (default: that of your unfinished release of this workload, else a new one)")
	flags.BoolVar(&f.noPromote, "no-promote", false, "stop when the last batch is ready")
	output.AddChoice(cmd, &f.onFailure, "on-failure", "", "what to do when the release fails: pause, rollback or wait",
		host.OnFailurePause, host.OnFailureRollback, host.OnFailureWait)
	f.AddRetryFor(cmd)
	output.AddFormat(cmd, &f.Output)
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
	gates, err := f.gates.gates(f.policy.gates)
	if err != nil {
		return host.Release{}, err
	}
	return host.Release{
		ID: f.id, NewID: newReleaseID, Owner: defaultOwner(), Policy: policy, Weights: weights, HeaderRoutes: headers,
		Pause: f.pause, NoPromote: f.noPromote, OnFailure: f.onFailure,
		Gates: gates, OnGateFailure: f.gates.onFailure,
	}, nil
}

// check refuses a policy that is invalid or has batches that are meant as percentages, and reports whether there is nothing to release: the driver
// would record a release all the same, in place of the last one that did something. Only a revision that runs unreleased needs one. A release in
// flight is continued as it is.
func (f *releaseFlags) check(s *session.Session, o *connect.Options, release host.Release) (done bool, err error) {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return false, s.Explain(err, "release")
	}
	// A release in flight is continued, and its batches were checked when it began.
	switch {
	case plugin.InFlight(c) && f.id == c.GetReleaseId() && host.IsOther(c.GetOwner()):
		return false, refuseOther(s, "release", c, s.Hints.For(c.GetOwner()).Abort)
	case plugin.InFlight(c):
		return false, nil
	}
	// The driver, which validates the policy, is not called if there is nothing to release.
	if _, bad := record.ParsePolicy(release.Policy); len(bad) > 0 {
		return false, s.Explain(drivererr.Invalid(bad...), "release")
	}
	if err := checkCounts(s.Name, release.Policy.GetBatches(), c.GetReplicas()); err != nil {
		return false, err
	}
	switch same, over := f.id == c.GetReleaseId(), c.GetReleaseId() != "" && c.GetState() != pb.State_STATE_UNMANAGED; {
	case same && over && c.GetState() != pb.State_STATE_ROLLED_BACK && c.GetTemplateRevision() != "" && plugin.Waits(c):
		return false, fmt.Errorf("cannot release %s: release %s is over, and revision %s is not part of it\n  to release it: %s",
			s.Name, f.id, c.GetTemplateRevision(), s.Hints.Resume)
	case same || !over || !allRun(c, c.GetTemplateRevision()) || c.GetReason() == plan.ReasonUnreleased:
		return false, nil
	}
	// The driver's cache may be older than the user's last edit. A driver at an address may be that of another cluster than the kubeconfig's,
	// whose workload of this name has another release.
	now, err := goalOf(s.Context, o, c.GetWorkload())
	if err != nil || c.GetObservedGeneration() < now.generation || now.release != c.GetReleaseId() {
		return false, nil //nolint:nilerr // the driver decides
	}
	s.Say(host.Event{Context: c, Outcome: host.OutcomeNothing, Message: host.NothingToRelease})
	return true, nil
}

// checkCounts refuses counts of groups that the workload does not have.
func checkCounts(name string, batches []string, groups int32) error {
	for _, b := range batches {
		// A count above the workload's is usually a forgotten percent sign.
		if n, err := strconv.Atoi(b); err == nil && groups > 0 && n > int(groups) {
			return exit.Usagef("--batches %s: %s has %d groups; for percentages write --batches %s%%",
				strings.Join(batches, ","), name, groups, strings.Join(batches, "%,"))
		}
	}
	return nil
}

// newReleaseID returns an id such as "cli-20260102-150405-k3x9": it sorts by time, and is unique within a second.
func newReleaseID() string {
	return fmt.Sprintf("cli-%s-%s", time.Now().UTC().Format("20060102-150405"), strings.ToLower(rand.Text()[:4]))
}

// defaultOwner identifies the user and the machine, as in "lockstep-cli/jo@laptop", as long as the driver accepts.
func defaultOwner() string {
	name, machine := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		machine = h
	}
	text := host.OwnerPrefix + name + "@" + machine
	// The cut may be within a character.
	return strings.ToValidUTF8(text[:min(len(text), record.MaxOwner)], "")
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

// completeFlag registers the values that the shell offers for a flag.
func completeFlag(cmd *cobra.Command, flag string, values ...string) {
	cobra.CheckErr(cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)))
}
