// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/picture"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/preflight"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/simulate"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const planAbout = `Show what a release would do: for each step the groups at the old and the new revision, the extra groups and resources, the
minimum and maximum capacity, and the time. Nothing is written.

With NAME it plans a release of that workload, shows blockers and warnings, and measures the start-up time of a group on the
workload's own groups. With --filename it needs no cluster: it plans a release from the manifest --from to that of
--filename. With --native it plans LeaderWorkerSet's own rolling update: each stage, with the partition and replicas of the
leader StatefulSet and every group.

-o svg draws it: groups as rows, the revision as color, capacity and the share of requests as lines.`

const planExample = `  lockstep plan vllm --batches 25%,50%,100%
  lockstep plan vllm --style blue-green --batches 100% --service vllm-leader --http-route vllm
  lockstep plan --filename new.yaml --from old.yaml --batches 1,4 --startup 10m
  lockstep plan vllm --native
  lockstep plan --native --replicas 4 --max-unavailable 2 --max-surge 2 -o svg > plan.svg`

const formatSVG view.Format = "svg"

type planFlags struct {
	session.Flags

	policy   policyFlags
	manifest manifestFlags
	native   bool
	startup  time.Duration
	parallel bool
	frames   bool

	// weights are the percentages of --weights. Empty: requests follow the groups.
	weights []int32
}

func newPlanCommand(o *connect.Options) *cobra.Command {
	f := planFlags{Flags: session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}}
	cmd := &cobra.Command{
		Use:               "plan [NAME]",
		Short:             "Show what a release would do, without doing it",
		Long:              planAbout,
		Example:           planExample,
		ValidArgsFunction: session.Names(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.plan(cmd, o, args) },
	}
	flags := cmd.Flags()
	flags.BoolVar(&f.native, "native", false, "plan LeaderWorkerSet's own rolling update, without a release")
	flags.DurationVar(&f.startup, "startup", 0,
		"time from a group's creation until it is ready (default: measured on the workload's own groups)")
	flags.BoolVar(&f.parallel, "stateful-set-max-unavailable", false,
		"the cluster has the feature gate MaxUnavailableStatefulSet: without it groups are updated one at a time")
	flags.BoolVar(&f.frames, "frames", false, "with -o json or yaml: also a frame for each change")
	f.policy.add(cmd)
	f.manifest.add(cmd)
	f.Dial.Add(flags)
	f.Output.Add(cmd, formatSVG)
	return cmd
}

func (f *planFlags) plan(cmd *cobra.Command, o *connect.Options, args []string) error {
	if err := f.Output.Check(); err != nil {
		return err
	}
	if f.startup < 0 {
		return exit.Usagef("--startup %s: want 0 or more", f.startup)
	}
	policy := &pb.ReleasePolicy{}
	if !f.native {
		var err error
		if policy, err = f.policy.policy(); err != nil {
			return err
		}
		if f.weights, err = f.policy.traffic.parseWeights(policy); err != nil {
			return err
		}
	}
	if f.manifest.given() {
		return f.planFile(o, args, policy)
	}
	if err := session.OneName(cmd, args); err != nil {
		return err
	}
	return f.Run(cmd, o, args[0], func(s *session.Session) error { return f.planWorkload(o, s, policy) })
}

func (f *planFlags) planWorkload(o *connect.Options, s *session.Session, policy *pb.ReleasePolicy) error {
	request := &pb.PlanRequest{
		Workload: s.Ref, Policy: policy, Native: f.native, StatefulSetMaxUnavailable: f.parallel, IncludeFrames: f.needsFrames(),
	}
	if f.startup > 0 {
		request.Startup = durationpb.New(f.startup)
	}
	r, err := session.Call(s, "plan the release of", s.Plan, request)
	if err != nil {
		return err
	}
	return errors.Join(f.show(o, s.Name, r), blocked(r))
}

// planFile plans without a cluster.
func (f *planFlags) planFile(o *connect.Options, args []string, policy *pb.ReleasePolicy) error {
	m, err := f.manifest.read(o, args)
	if err != nil {
		return err
	}
	in := m.input
	in.Startup, in.StatefulSetMaxUnavailable, in.Frames = f.startup, f.parallel, f.needsFrames()
	var r *pb.PlanResponse
	if f.native {
		if r, err = simulate.Native(in); err != nil {
			return exit.Usagef("%s: %w", m.name, err)
		}
	} else {
		if in.Policy, err = parsePolicy(policy); err != nil {
			return err
		}
		if r, err = simulate.Release(in); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	r.Warnings = append(in.Policy.Warnings(in.Replicas), m.warnings...)
	if m.inventory != nil {
		m.inventory.Policy = in.Policy
		r.Findings = preflight.Check(m.inventory).GetFindings()
	}
	if f.startup == 0 {
		r.Warnings = append(r.Warnings, &pb.Warning{Code: "StartupUnknown", Message: "the start-up time of a group is unknown: give --startup"})
	}
	return errors.Join(f.show(o, m.name, r), blocked(r))
}

// blocked returns an error if a release would be refused or fail.
func blocked(r *pb.PlanResponse) error {
	if len(r.GetBlockers()) > 0 {
		return exit.Errorf(exit.Found, "the release is blocked: see the plan")
	}
	return nil
}

// needsFrames reports whether the output shows frames.
func (f *planFlags) needsFrames() bool { return f.frames || f.native || f.Output.Format == formatSVG }

func (f *planFlags) show(o *connect.Options, name string, r *pb.PlanResponse) error {
	setWeights(r, f.weights)
	var err error
	switch f.Output.Format {
	case formatSVG:
		_, err = o.Stdout.Write(picture.Plan(name+": "+view.PlanStyle(r), r))
	case "":
		_, err = fmt.Fprint(output.Text(o.Stdout), view.Plan(name, r))
	default:
		if !f.frames {
			r.Frames = nil
		}
		documents := view.NewDocuments(o.Stdout, f.Output.Format, false)
		documents.Plan(r, time.Now())
		return documents.Err()
	}
	if err != nil {
		return fmt.Errorf("write the plan: %w", err)
	}
	return nil
}

// setWeights replaces the shares of the batches, which the driver plans by groups, by the weights that the release requests. A
// release sets the weight of a batch once its groups are ready: in the last frame of the step.
func setWeights(r *pb.PlanResponse, weights []int32) {
	steps, frames := r.GetSteps(), r.GetFrames()
	weights = weights[:min(len(weights), len(steps))]
	for i, weight := range weights {
		steps[i].TrafficWeight = weight
	}
	shares := append([]int32{0}, weights...) // before each step
	for i, frame := range frames {
		step := int(frame.GetStep())
		last := i+1 == len(frames) || int(frames[i+1].GetStep()) != step
		switch {
		case step >= len(weights):
			// The promotion moves all requests, whatever the weights of the batches are.
		case last:
			frame.TrafficWeight = shares[step+1]
		default:
			frame.TrafficWeight = shares[step]
		}
	}
}
