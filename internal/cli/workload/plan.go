// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const planAbout = `Show what a release of a workload would do: for each step the groups at the old and the new revision, the extra groups and
resources, the minimum and maximum capacity, and the time, and what would block it. The start-up time of a group is measured on the
workload's own groups. Nothing is written. With -o the document is the contract's PlanResponse as ProtoJSON.`

const planExample = `  lockstep plan vllm --batches 25%,50%,100%
  lockstep plan vllm --style blue-green --batches 100% --service vllm-leader --http-route vllm
  lockstep plan vllm --policy policy.yaml --startup 10m`

type planFlags struct {
	session.Flags

	policy   policyFlags
	startup  time.Duration
	parallel bool
}

func newPlanCommand(o *connect.Options) *cobra.Command {
	f := planFlags{Flags: session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}}
	var policy *pb.ReleasePolicy
	var weights []int32
	cmd := f.Command(o, &cobra.Command{
		Use:     "plan NAME",
		Short:   "Show what a release would do, without doing it",
		Long:    planAbout,
		Example: planExample,
		PreRunE: func(*cobra.Command, []string) (err error) {
			if f.startup < 0 {
				return exit.Usagef("--startup %s: want 0 or more", f.startup)
			}
			if policy, err = f.policy.policy(); err == nil {
				weights, err = f.policy.traffic.parseWeights(policy)
			}
			return err
		},
	}, func(s *session.Session) error { return f.plan(s, policy, weights) })
	flags := cmd.Flags()
	flags.DurationVar(&f.startup, "startup", 0,
		"time from a group's creation until it is ready (default: measured on the workload's own groups)")
	flags.BoolVar(&f.parallel, "stateful-set-max-unavailable", false,
		"the cluster has the feature gate MaxUnavailableStatefulSet: without it groups are updated one at a time")
	f.policy.add(cmd)
	output.AddFormat(cmd, &f.Output)
	return cmd
}

func (f *planFlags) plan(s *session.Session, policy *pb.ReleasePolicy, weights []int32) error {
	request := &pb.PlanRequest{Workload: s.Ref, Policy: policy, StatefulSetMaxUnavailable: f.parallel}
	if f.startup > 0 {
		request.Startup = durationpb.New(f.startup)
	}
	r, err := session.Call(s, "plan the release of", s.Plan, request)
	if err != nil {
		return err
	}
	if err := checkCounts(s.Name, policy.GetBatches(), r.GetReplicas()); err != nil {
		return err
	}
	// The driver plans the shares of the batches by groups. A release requests others.
	for i, step := range r.GetSteps()[:min(len(weights), len(r.GetSteps()))] {
		step.TrafficWeight = weights[i]
	}
	if f.Output == "" {
		_, err = fmt.Fprint(s.Text, view.Plan(s.Name, r))
	} else {
		err = view.WriteMessage(s.Stdout, r, f.Output)
	}
	switch {
	case err != nil:
		return fmt.Errorf("write the plan: %w", err)
	case len(r.GetBlockers()) > 0:
		return exit.Errorf(exit.Found, "the release is blocked: see the plan")
	default:
		return nil
	}
}
