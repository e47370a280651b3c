// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const watchAbout = `Show releases as they change, whichever host drives them, until Ctrl-C. A terminal shows the status and the tree of lockstep
status, redrawn in place. If stdout is not a terminal, or TERM is dumb, each change is a line. It changes nothing.

Without NAME it shows every workload under hold with a running release, in one namespace or with -A in all, and says when none
runs. With NAME, which a driver without WatchWorkloads needs, it shows that workload until it is deleted.

It needs get, list and watch on what the driver reads.`

const watchExample = `  lockstep watch
  lockstep watch vllm
  lockstep watch -A`

func newWatchCommand(o *connect.Options) *cobra.Command {
	var scope session.Scope
	cmd := &cobra.Command{
		Use:               "watch [NAME]",
		Short:             "Show running releases as they change",
		Long:              watchAbout,
		Example:           watchExample,
		ValidArgsFunction: session.Names(o),
		RunE:              func(cmd *cobra.Command, args []string) error { return watch(cmd, o, &scope, args) },
	}
	scope.Add(cmd.Flags())
	return cmd
}

func watch(cmd *cobra.Command, o *connect.Options, scope *session.Scope, args []string) error {
	name := strings.Join(args, "")
	switch {
	case len(args) > 1 || len(args) == 1 && name == "":
		return exit.Usagef("%s takes the name of one LeaderWorkerSet, or none, got %q", cmd.CommandPath(), args)
	case name != "" && cmd.Flags().Changed("all-namespaces"):
		return exit.Usagef("%s %s: NAME and --all-namespaces exclude each other", cmd.CommandPath(), name)
	}
	namespace, err := scope.Namespace(o)
	if err != nil {
		return err
	}
	ref := &pb.WorkloadRef{}
	if name != "" {
		if ref, err = session.ParseRef(namespace, name); err != nil {
			return err
		}
	}
	show, logs := output.NewLive(o.Stdout, o.Stderr)
	if show == nil {
		show, logs = view.NewLines(output.Text(o.Stdout), time.Now(), name == ""), o.Stderr
	}
	defer show.Close()
	link, err := scope.Connect(cmd, o, namespace, lwsdriver.KeyOf(ref).Name, logs)
	if err != nil {
		return err
	}
	w := &watcher{driver: link.Client, display: show, held: map[string]*pb.BatchContext{}}
	what, hints := "watch releases", session.HintsFor(cmd, cmp.Or(name, "NAME"))
	if name == "" {
		err = w.workloads(link.Context, namespace)
	} else {
		what = "watch " + namespace + "/" + name
		err = w.workload(link.Context, ref)
	}
	return errors.Join(session.Explain(link.Cause(err), what, hints), link.Close())
}

// watcher is one run of `lockstep watch`.
type watcher struct {
	driver  host.Watcher
	display output.Display
	// held has the workloads under hold. It is complete once synced is true.
	held   map[string]*pb.BatchContext
	synced bool
	// lost is true while the driver does not answer.
	lost bool
}

// workload shows one workload.
func (w *watcher) workload(ctx context.Context, ref *pb.WorkloadRef) error {
	return w.follower().Workload(ctx, ref, func(c *pb.BatchContext) {
		w.found()
		w.display.Observe(statusEvent(c))
	})
}

// workloads shows the releases that run in a namespace, or without one in all.
func (w *watcher) workloads(ctx context.Context, namespace string) error {
	req := &pb.WatchWorkloadsRequest{Namespace: namespace, IncludeGroups: true}
	return w.follower().Workloads(ctx, req, func(r *pb.WatchWorkloadsResponse) {
		w.found()
		switch change := r.GetChange().(type) {
		case *pb.WatchWorkloadsResponse_Context:
			w.change(change.Context)
		case *pb.WatchWorkloadsResponse_Removed:
			w.remove(change.Removed)
		case *pb.WatchWorkloadsResponse_Synced:
			w.synced = true
			w.sayIdle()
		}
	})
}

func (w *watcher) change(c *pb.BatchContext) {
	name := c.GetWorkload().GetNamespace() + "/" + c.GetWorkload().GetName()
	ran := view.Running(w.held[name])
	w.held[name] = c
	switch {
	case view.Running(c):
		w.display.Observe(statusEvent(c))
	case ran:
		w.display.End(statusEvent(c))
		w.sayIdle()
	}
}

func (w *watcher) remove(ref *pb.WorkloadRef) {
	name := ref.GetNamespace() + "/" + ref.GetName()
	last := w.held[name]
	delete(w.held, name)
	if view.Running(last) {
		w.display.End(host.Event{Kind: view.EventGone, Time: time.Now(), Message: "no longer under hold", Context: last})
		w.sayIdle()
	}
}

// sayIdle says that no release runs, since the display is empty then.
func (w *watcher) sayIdle() {
	if !w.synced {
		return
	}
	for _, c := range w.held {
		if view.Running(c) {
			return
		}
	}
	text := "no release is running, and no workload is under hold: see lockstep adopt"
	if n := len(w.held); n > 0 {
		text = fmt.Sprintf("no release is running, workloads under hold: %d", n)
	}
	w.say(text)
}

// follower returns one that reports a lost driver once.
func (w *watcher) follower() *host.Follower {
	return &host.Follower{Driver: w.driver, Lost: func(err error) {
		if !w.lost {
			w.say("lost the driver, retrying: " + session.Shorten(err).Error())
		}
		w.lost = true
	}}
}

// found reports that a lost driver answers again.
func (w *watcher) found() {
	if w.lost {
		w.say("reconnected to the driver")
	}
	w.lost = false
}

func (w *watcher) say(message string) {
	w.display.Observe(host.Event{Kind: host.EventRetrying, Time: time.Now(), Message: message})
}

func statusEvent(c *pb.BatchContext) host.Event {
	return host.Event{Kind: view.EventStatus, Time: time.Now(), Context: c}
}
