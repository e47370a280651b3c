// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// shortPatience is how long commands that only ask keep asking a driver that starts or an API server that is away.
const shortPatience = 30 * time.Second

// target is what every command about one workload has: how to reach a driver, and how to show the answer.
type target struct {
	dial   dialFlags
	output outputFlags
	// patience is how long errors that may pass are retried.
	patience time.Duration
	// readOnly is set for a command that must not change anything, by a driver inside this process either.
	readOnly bool
}

// session is one command at work.
type session struct {
	*link
	*printer

	host *host.Host
	ref  *pb.WorkloadRef
	// name is "namespace/name", for messages.
	name  string
	hints hints
}

// run connects, does the work, and cleans up.
func (t *target) run(cmd *cobra.Command, o *options, name string, work func(s *session) error) error {
	if err := errors.Join(t.dial.check(), t.output.check()); err != nil {
		return err
	}
	namespace, err := o.workloadNamespace()
	if err != nil {
		return err
	}
	s := &session{
		printer: t.output.newPrinter(o),
		ref:     &pb.WorkloadRef{Namespace: namespace, Name: name},
		name:    namespace + "/" + name,
		hints:   hintsFor(cmd, name),
	}
	err = t.work(cmd, o, s, work)
	return errors.Join(err, s.finish())
}

func (t *target) work(cmd *cobra.Command, o *options, s *session, work func(s *session) error) error {
	inside := *o
	inside.namespace, inside.stderr = s.ref.GetNamespace(), s.logs
	inside.workload = types.NamespacedName{Namespace: s.ref.GetNamespace(), Name: s.ref.GetName()}
	inside.readOnly = t.readOnly
	if !cmd.Flags().Changed("log-level") {
		// The command itself says what happens.
		inside.logLevel = "warn"
	}
	var err error
	if s.link, err = t.dial.connect(cmd.Context(), &inside); err != nil {
		return explain(err, "reach the driver", s.hints)
	}
	s.host = &host.Host{Driver: s.Client, Observe: s.observe, Timing: host.Timing{Patience: t.patience}}
	err = work(s)
	return errors.Join(err, s.link.close())
}

// explain is explain with what the session knows.
func (s *session) explain(err error, verb string) error {
	err = cause(s.ctx, err)
	if _, ok := statusOf(err); ok && s.ctx.Err() != nil {
		return ends(exitInterrupted, "interrupted", nil)
	}
	return explain(err, verb+" "+s.name, s.hints)
}

// conclude turns the end of a run into the command's error.
func (s *session) conclude(result host.Result, err error, verb string, wanted ...host.Outcome) error {
	if why := cause(s.ctx, err); why != nil {
		return s.explain(why, verb)
	}
	if err := verdict(result, s.hints, wanted...); err != nil {
		return err
	}
	s.people(s.last)
	return nil
}

// oneName accepts exactly the workload's name.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return usageErrorf("%s needs the name of one LeaderWorkerSet, got %q; see %s --help",
			cmd.CommandPath(), args, cmd.CommandPath())
	}
	return nil
}
