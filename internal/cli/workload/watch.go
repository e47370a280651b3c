// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host/screen"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const watchAbout = `Show running releases full-screen, as they change: a list, and for the selected release its groups, batches, traffic,
deadline, blocking groups and latest events. A release that ends stays on the screen until you quit. No key changes a
release.

Without NAME it shows every workload under hold with a running release, in one namespace or with -A in all. With NAME, which
a driver without WatchWorkloads needs, a workload that is deleted and created again is shown again.

It needs get, list and watch on what the driver reads, and on events. With --address it shows events only if --kubeconfig or
--context name the driver's cluster. If stdout is not a terminal, if TERM is dumb, or with --plain, it prints one line per
change instead.`

const watchExample = `  lockstep watch
  lockstep watch vllm
  lockstep watch -A
  lockstep watch --plain`

type watchFlags struct {
	dial   connect.Flags
	all    bool
	plain  bool
	ascii  bool
	getenv func(string) string
}

func newWatchCommand(o *connect.Options) *cobra.Command {
	f := watchFlags{getenv: os.Getenv}
	cmd := &cobra.Command{
		Use:               "watch [NAME]",
		Short:             "Show running releases full-screen, as they change",
		Long:              watchAbout,
		Example:           watchExample,
		ValidArgsFunction: session.Names(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return f.run(cmd, o, args) },
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.all, "all-namespaces", "A", false, "all namespaces that the driver serves")
	flags.BoolVar(&f.plain, "plain", false, "print one line per change, as if stdout were not a terminal")
	flags.BoolVar(&f.ascii, "ascii", false, "draw with ASCII only (default: unless LC_ALL, LC_CTYPE or LANG name UTF-8)")
	f.dial.Add(flags)
	return cmd
}

func (f *watchFlags) run(cmd *cobra.Command, o *connect.Options, args []string) error {
	if err := f.check(cmd, o, args); err != nil {
		return err
	}
	w := &watcher{hints: session.HintsFor(cmd, "NAME")}
	name := strings.Join(args, "") // at most one
	if !f.all {
		var err error
		if w.namespace, err = o.WorkloadNamespace(); err != nil {
			return err
		}
	}
	if name != "" {
		w.only = &pb.WorkloadRef{Namespace: w.namespace, Name: name}
		w.hints = session.HintsFor(cmd, name)
	}
	inside := o.ForCommand(cmd.Flags(), w.namespace, name)
	inside.ReadOnly, inside.Silent = true, true
	show, logs := f.display(o, w)
	inside.Stderr = logs
	var err error
	if w.Link, err = f.dial.Connect(cmd.Context(), inside); err != nil {
		return session.Explain(err, "reach the driver", w.hints)
	}
	w.events, w.noEvents = f.eventsOf(cmd, inside)
	err = w.explain(show(w.Context))
	return errors.Join(err, w.Close())
}

func (f *watchFlags) check(cmd *cobra.Command, o *connect.Options, args []string) error {
	switch {
	case len(args) > 1 || len(args) == 1 && args[0] == "":
		return exit.Usagef("%s takes the name of one LeaderWorkerSet, or none, got %q", cmd.CommandPath(), args)
	case f.all && len(args) > 0:
		return exit.Usagef("%s %s: NAME and --all-namespaces exclude each other", cmd.CommandPath(), args[0])
	case f.all && o.Namespace != "":
		return exit.Usagef("--all-namespaces and --namespace %s exclude each other", o.Namespace)
	}
	return f.dial.Check(o)
}

// display returns the function that shows releases, and the writer of the driver's log.
func (f *watchFlags) display(o *connect.Options, w *watcher) (show func(context.Context) error, logs io.Writer) {
	out, ok := output.Terminal(o.Stdout)
	if term := f.getenv("TERM"); !ok || f.plain || term == "" || term == "dumb" {
		return func(ctx context.Context) error { return w.lines(ctx, o.Stdout) }, o.Stderr
	}
	w.logs = &relay{}
	logs = w.logs
	if _, ok := output.Terminal(o.Stderr); !ok {
		logs = o.Stderr
	}
	return func(ctx context.Context) error {
		s := screen.New(screen.Options{
			Only: w.only, Namespace: w.namespace, Unicode: !f.ascii && screen.Unicode(f.getenv), NoEvents: w.noEvents,
		}, time.Now())
		return w.screen(ctx, s, screen.Terminal{Out: out, Env: f.environment()}, o.Stdout)
	}, logs
}

// environment returns the process's environment, with NO_COLOR=1 for any value of NO_COLOR: the library ignores others.
func (f *watchFlags) environment() []string {
	env := os.Environ()
	if f.getenv("NO_COLOR") != "" {
		env = append(env, "NO_COLOR=1")
	}
	return env
}
