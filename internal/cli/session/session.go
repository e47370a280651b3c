// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package session runs a command about one workload: it connects to a driver, shows progress, and adds to an error how to
// fix it.
//
//	flags := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
//	cmd := flags.Command(options, &cobra.Command{Use: "history NAME"}, func(s *session.Session) error {
//		response, err := session.Call(s, "read the history of", s.ListRevisions, &pb.ListRevisionsRequest{Workload: s.Ref})
//		...
//	})
package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// ShortRetry is how long commands that make one request retry while the driver or the API server is unavailable.
const ShortRetry = 30 * time.Second

// giveUp is how long these commands wait for an API server that gives no answer at all.
const giveUp = 8 * time.Second

// Flags are those of a command about one workload.
type Flags struct {
	Dial connect.Flags
	// Output is the value of -o.
	Output view.Format
	// RetryFor is how long transient errors are retried.
	RetryFor time.Duration
	// ReadOnly makes a driver inside this process write nothing, not even events.
	ReadOnly bool

	all bool
}

// retryFor is the flag of commands whose user says how long to wait.
const retryFor = "retry-for"

// AddRetryFor registers --retry-for.
func (f *Flags) AddRetryFor(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.RetryFor, retryFor, 5*time.Minute, "how long to retry while the driver or the API server does not answer")
}

// Command completes a command whose first argument is the workload's name. Without one the session is about all workloads of the namespace;
// Args of the command may allow that.
func (f *Flags) Command(o *connect.Options, cmd *cobra.Command, work func(s *Session) error) *cobra.Command {
	if cmd.Args == nil {
		cmd.Args = OneName
	}
	cmd.ValidArgsFunction = Names(o)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return f.Run(cmd, o, args, work) }
	f.Dial.Add(cmd.Flags())
	return cmd
}

// Session is one run of a command.
type Session struct {
	*connect.Link
	*output.Printer

	Host *host.Host
	// Ref has no name in a session about all workloads of its namespace, and no namespace in one about those of all namespaces.
	Ref *pb.WorkloadRef
	// Name is "namespace/name" or "workloads", for messages.
	Name string
	// Args follow the workload's name.
	Args  []string
	Hints Hints
}

// kinds are the types of workloads in arguments, as kubectl accepts them.
var kinds = map[string]string{
	"leaderworkerset": "LeaderWorkerSet", "leaderworkersets": "LeaderWorkerSet", "lws": "LeaderWorkerSet",
	"disaggregatedset": "DisaggregatedSet", "disaggregatedsets": "DisaggregatedSet",
}

// ParseRef returns the workload that an argument names: NAME of a LeaderWorkerSet, or TYPE/NAME.
func ParseRef(namespace, argument string) (*pb.WorkloadRef, error) {
	kind, name, typed := strings.Cut(argument, "/")
	if !typed {
		return &pb.WorkloadRef{Namespace: namespace, Name: argument}, nil
	}
	known, ok := kinds[strings.ToLower(strings.SplitN(kind, ".", 2)[0])]
	switch {
	case strings.EqualFold(kind, "ds"):
		// kubectl takes ds for a DaemonSet, so the same word must not mean another object here.
		return nil, exit.Usagef("%s: ds is a DaemonSet for kubectl: write disaggregatedset/%s", argument, name)
	case !ok || name == "":
		return nil, exit.Usagef("%s: want NAME of a LeaderWorkerSet, leaderworkerset/NAME or disaggregatedset/NAME", argument)
	}
	return &pb.WorkloadRef{Namespace: namespace, Name: name, Kind: known}, nil
}

// Run connects to a driver, calls work, and disconnects.
func (f *Flags) Run(cmd *cobra.Command, o *connect.Options, args []string, work func(s *Session) error) error {
	s, driverOf, err := f.newSession(cmd, o, args)
	if err != nil {
		return err
	}
	if s.Link, err = f.Dial.Connect(cmd.Context(), driverOf); err == nil {
		s.Host = &host.Host{Driver: s.Client, Observe: s.Observe, Timing: host.Timing{Patience: f.RetryFor}}
		err = errors.Join(work(s), s.Link.Close())
	} else if _, called := statusOf(err); called || f.Dial.Address != "" { // else it is of a kubeconfig, or of flags
		err = explainError(err, "reach the driver", s.Hints)
	}
	return errors.Join(err, s.Printer.Close())
}

// newSession returns a session that is not connected yet, and the options of a driver inside this process, or a usage error.
func (f *Flags) newSession(cmd *cobra.Command, o *connect.Options, args []string) (*Session, *connect.Options, error) {
	s := &Session{Name: "workloads"}
	name := ""
	if len(args) > 0 {
		name, s.Args = args[0], args[1:]
	}
	switch {
	case f.RetryFor <= 0: // 0 would be the default
		return nil, nil, exit.Usagef("--retry-for %s: want more than 0, for example 1s", f.RetryFor)
	case f.all && name != "":
		return nil, nil, exit.Usagef("%s %s: NAME and --all-namespaces exclude each other", cmd.CommandPath(), name)
	case f.all && o.Namespace != "":
		return nil, nil, exit.Usagef("--all-namespaces and --namespace %s exclude each other", o.Namespace)
	}
	err := f.Dial.Check(o)
	namespace := ""
	if err == nil && !f.all {
		namespace, err = o.WorkloadNamespace()
	}
	if err == nil {
		s.Ref, err = ParseRef(namespace, name)
	}
	if err != nil {
		return nil, nil, err
	}
	if name != "" {
		s.Name = plugin.WorkloadKey(s.Ref)
	}
	s.Hints = hintsFor(cmd, cmp.Or(name, "NAME"))
	s.Printer = output.NewPrinter(o.Stdout, o.Stderr, f.Output, name == "")
	// Caches of a driver inside are for this workload only, so that a command on a large cluster stays cheap.
	inside := o.ForCommand(cmd.Flags(), namespace, lwsdriver.KeyOf(s.Ref).Name)
	// Logs must not tear a status that is redrawn.
	inside.ReadOnly, inside.Silent, inside.Stderr = f.ReadOnly, f.ReadOnly, s.Logs
	if cmd.Flags().Lookup(retryFor) == nil {
		inside.GiveUp = giveUp
	}
	return s, inside, nil
}

// Call retries an RPC until the driver answers. Verb says in an error what failed.
func Call[Request, Response any](
	s *Session, verb string, rpc func(context.Context, Request, ...grpc.CallOption) (Response, error), request Request,
) (response Response, err error) {
	err = s.Host.Retry(s.Context, func(ctx context.Context) (err error) {
		response, err = rpc(ctx, request)
		return err
	})
	if err != nil {
		err = s.Explain(err, verb)
	}
	return response, err
}

// Say shows the result of a command that did not follow a release.
func (s *Session) Say(e host.Event) {
	e.Kind, e.Time = host.EventFinished, time.Now()
	s.Observe(e)
	s.ShowLast()
}

// Explain describes an error of the driver to the user, nil if there is none.
func (s *Session) Explain(err error, verb string) error {
	err = s.Cause(err)
	// The call failed since the command was interrupted, and its own code says nothing.
	if _, ok := statusOf(err); ok && s.Context.Err() != nil {
		return exit.Errorf(exit.Interrupted, "interrupted")
	}
	return explainError(err, verb+" "+s.Name, s.Hints)
}

// Conclude returns the command's error for the result of a run.
func (s *Session) Conclude(result host.Result, err error, verb string, wanted ...host.Outcome) error {
	if err := s.Cause(err); err != nil {
		return s.Explain(err, verb)
	}
	if err := outcomeError(result, s.Hints, wanted...); err != nil {
		return err
	}
	s.ShowLast()
	return nil
}

// OneName requires the workload's name as the only argument.
func OneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return exit.Usagef("%s needs the name of one LeaderWorkerSet, or disaggregatedset/NAME, got %q; see %s --help",
			cmd.CommandPath(), args, cmd.CommandPath())
	}
	return nil
}

// AtMostOneName allows a command without a name.
func AtMostOneName(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return OneName(cmd, args)
}

const (
	// completionTimeout bounds how long a shell waits for names.
	completionTimeout = 3 * time.Second
	// maxNames bounds how many names are offered.
	maxNames = 500
)

// Names completes NAME by the workloads of the namespace. Without a cluster there is nothing to offer.
func Names(o *connect.Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names, err := workloadNames(cmd.Context(), o)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func workloadNames(ctx context.Context, o *connect.Options) ([]string, error) {
	namespace, err := o.WorkloadNamespace()
	if err != nil {
		return nil, err
	}
	// A shell that completes must not hang without a cluster.
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	var names []string
	for _, kind := range []string{plugin.KindLeaderWorkerSet, plugin.KindDisaggregatedSet} {
		ref := &pb.WorkloadRef{Namespace: namespace, Kind: kind}
		client, err := o.Workloads(ref)
		if err != nil {
			return nil, err
		}
		list, err := client.List(ctx, metav1.ListOptions{Limit: maxNames})
		if err != nil {
			return names, fmt.Errorf("list each %s: %w", kind, err)
		}
		for i := range list.Items {
			if ref.Name = list.Items[i].Name; IsUsers(&list.Items[i]) {
				names = append(names, plugin.NameOf(ref))
			}
		}
	}
	return names, nil
}

// IsUsers reports whether a workload is one of the user's: canaries have a role, and children of sets, as those of other controllers, an owner.
func IsUsers(w metav1.Object) bool {
	_, added := w.GetLabels()[record.RoleLabel]
	return !added && metav1.GetControllerOfNoCopy(w) == nil
}

// AddAll registers --all-namespaces, for a command that shows the workloads of a namespace, or of all.
func (f *Flags) AddAll(flags *pflag.FlagSet) {
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces that the driver serves")
}
