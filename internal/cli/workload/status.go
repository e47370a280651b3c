// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/internal/cli/output"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

const statusAbout = `List the workloads of a namespace, adopted or not, with their states and what they wait for. With NAME, show a workload's release,
batch and traffic, and a tree of its revisions, batches and groups. It also works without a release. It only reads: a driver inside
this process is read-only. The exit code reports whether the status could be read, not whether the release succeeds.

With --wait it returns 0 once the template is released: every group runs it and is ready, and no release is in flight. The
template is the one that the API server has when the command starts, or a later one. No driver or host has to run: a template that
is held keeps it waiting. If the release of that template fails or is rolled back, it returns 3 or 4 at once. After the time it
returns 1, and names what it waits for and who releases it. It needs permission to read only.`

func newStatusCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	var watch, all bool
	var wait time.Duration
	cmd := f.Command(o, &cobra.Command{
		Use:     "status [NAME]",
		Short:   "List workloads, or show the status of one and its release",
		Long:    statusAbout,
		Example: "  lockstep status\n  lockstep status -A\n  lockstep status vllm\n  lockstep status vllm -w\n  lockstep status vllm --wait=2h\n  lockstep status vllm -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("wait") || all {
				return session.OneName(cmd, args)
			}
			return session.AtMostOneName(cmd, args)
		},
	}, func(s *session.Session) error {
		switch {
		case wait > 0:
			return awaitRelease(s, o, wait)
		case watch:
			return followWorkloads(s)
		case s.Ref.GetName() == "":
			return listWorkloads(s, o)
		default:
			return showStatus(s, all)
		}
	})
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		switch waits := cmd.Flags().Changed("wait"); {
		case waits && wait <= 0:
			return exit.Usagef("--wait %s: want more than 0, for example 2h", wait)
		case waits && watch:
			return exit.Usagef("--wait and --watch exclude each other")
		case all && (waits || watch):
			return exit.Usagef("--all is for a status that is printed once: leave out --wait and --watch")
		case waits && f.Dial.Address != "":
			return exit.Usagef("--wait reads the API server itself: leave out --address")
		default:
			return nil
		}
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "follow it until Ctrl-C")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait until the template in the spec is released, at most so long: --wait=DURATION")
	cmd.Flags().Lookup("wait").NoOptDefVal = "1h"
	cmd.Flags().BoolVar(&all, "all", false, "show every ready group, not 8 per branch")
	f.AddAll(cmd.Flags())
	output.AddFormat(cmd, &f.Output)
	return cmd
}

func showStatus(s *session.Session, all bool) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "read the status of")
	}
	if s.HasDocuments() {
		s.Document(c)
		return nil
	}
	text := view.Status(c, time.Now(), all)
	// A host that was removed can't tell that it is gone: its release would wait without a word.
	waits := c.GetState() == pb.State_STATE_READY || c.GetState() == pb.State_STATE_HOLDING || c.GetState() == pb.State_STATE_FAILED
	if waits && plugin.InFlight(c) && host.IsOther(c.GetOwner()) {
		text += fmt.Sprintf("\n%s continues or ends this release. If it is gone: %s\n", view.OneLine(c.GetOwner()), s.Hints.For(c.GetOwner()).Abort)
	}
	_, err = fmt.Fprint(s.Text, text)
	return err
}

// awaitRelease shows the status until the template in the spec is released, or can't be without a user, or the time is over.
func awaitRelease(s *session.Session, o *connect.Options, within time.Duration) error {
	c, err := s.Host.Look(s.Context, s.Ref)
	if err != nil {
		return s.Explain(err, "wait for")
	}
	goal, err := goalOf(s.Context, o, c.GetWorkload())
	if err != nil {
		return s.Explain(err, "wait for")
	}
	ctx, stop := context.WithTimeout(s.Context, within)
	defer stop()
	waits, ended := c.GetMessage(), false
	var failure error
	err = s.Host.Follow(ctx, s.Ref, func(c *pb.BatchContext) {
		// Follow may deliver states that were on their way when it was stopped.
		if ended {
			return
		}
		s.Observe(view.StatusEvent(c))
		if waits, failure = goal.judge(c); failure != nil || waits == "" {
			ended = true
			stop()
		}
	})
	switch err = s.Cause(err); {
	case ended:
		return failure
	case err != nil:
		return s.Explain(err, "wait for")
	case s.Context.Err() != nil:
		return exit.Errorf(exit.Interrupted, "interrupted: %s", waits)
	default:
		return fmt.Errorf("%s is not released after %s: %s\n  to see the status: %s", s.Name, within, waits, s.Hints.Status)
	}
}

// goalOf returns the goal of a wait that begins now, for the object that has the workload since its last handover. It asks the API
// server, since a driver's caches may be older than the caller's last write.
func goalOf(ctx context.Context, o *connect.Options, ref *pb.WorkloadRef) (*goal, error) {
	client, err := o.Workloads(ref)
	if err != nil {
		return nil, err
	}
	object, err := client.Get(ctx, ref.GetName(), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the workload: %w", err)
	}
	g := &goal{object: object.Name, generation: object.Generation}
	if r, err := record.DecodeRecord(object.Annotations[record.RecordAnnotation]); err == nil && r.Release != nil {
		g.release = r.Release.ID
	}
	return g, nil
}

// goal is what a wait is for: every group runs a template, is ready, and no release is in flight. The template is the one that the API
// server had when the wait began, or a later one.
type goal struct {
	object     string
	generation int64
	// release is the id of the release in the object's record, "" without one.
	release string
	// template is the first revision that LWS observed at the generation, "" before that. The wait ends early if its release fails;
	// that of an older template may fail, since the newer one replaces it.
	template string
}

// judge returns what a wait still waits for, or "" once the goal is reached. The error ends the wait early.
func (g *goal) judge(c *pb.BatchContext) (waits string, err error) {
	// The object that a handover made is newer than the wait, and its generations count from 1.
	observed := c.GetObservedGeneration() >= g.generation || c.GetWorkload().GetName() != g.object
	if !observed || c.GetTemplateRevision() == "" {
		return fmt.Sprintf("the LeaderWorkerSet controller has observed generation %d, not %d yet", c.GetObservedGeneration(), g.generation), nil
	}
	g.template = cmp.Or(g.template, c.GetTemplateRevision())
	owner := cmp.Or(c.GetOwner(), "its host")
	if c.GetUpdateRevision() == g.template {
		switch c.GetState() {
		case pb.State_STATE_FAILED:
			return "", exit.Errorf(exit.Failed, "release %s by %s failed (%s): %s", c.GetReleaseId(), owner, c.GetReason(), c.GetMessage())
		case pb.State_STATE_ROLLING_BACK, pb.State_STATE_ROLLED_BACK:
			return "", exit.Errorf(exit.RolledBack, "release %s by %s was rolled back: %s", c.GetReleaseId(), owner,
				cmp.Or(c.GetEndMessage(), c.GetMessage()))
		default:
		}
	}
	// Every group may run the template before its release has ended.
	if plugin.InFlight(c) {
		return fmt.Sprintf("release %s by %s is %s: %s", c.GetReleaseId(), owner, view.StateWord(c.GetState()), c.GetMessage()), nil
	}
	return awaitsGroups(c, owner), nil
}

// awaitsGroups returns why not every group of the workload runs the template and is ready, or "".
func awaitsGroups(c *pb.BatchContext, owner string) string {
	groups, older, done := int32(0), false, int32(0)
	for _, g := range c.GetGroups() {
		if g.GetRole() != pb.GroupRole_GROUP_ROLE_STABLE {
			continue
		}
		groups++
		switch at := g.GetRevision() == c.GetTemplateRevision(); {
		case at && g.GetReady():
			done++
		case !at && g.GetRevision() != "":
			// A group without a pod has no revision, and is no older one.
			older = true
		}
	}
	switch held := c.GetState() != pb.State_STATE_UNMANAGED; {
	case done == groups && groups == c.GetReplicas():
		return ""
	case older && held:
		return fmt.Sprintf("template %s is held and waits for a release by %s", c.GetTemplateRevision(), owner)
	default:
		return fmt.Sprintf("%d of %d groups run template %s and are ready", done, max(groups, c.GetReplicas()), c.GetTemplateRevision())
	}
}

const watchAbout = `Show releases as they change, whichever host drives them, until Ctrl-C. A terminal shows the status and the tree of lockstep
status, redrawn in place. If stdout is not a terminal, or TERM is dumb, each change is a line. It changes nothing.

Without NAME it shows every workload under hold with a running release, in one namespace or with -A in all, and says when none
runs. With NAME, which a driver without WatchWorkloads needs, it shows that workload until it is deleted.

It needs get, list and watch on what the driver reads.`

const watchExample = `  lockstep watch
  lockstep watch vllm
  lockstep watch -A`

func newWatchCommand(o *connect.Options) *cobra.Command {
	f := session.Flags{RetryFor: session.ShortRetry, ReadOnly: true}
	cmd := f.Command(o, &cobra.Command{
		Use:     "watch [NAME]",
		Short:   "Show running releases as they change",
		Long:    watchAbout,
		Example: watchExample,
		Args:    session.AtMostOneName,
	}, followWorkloads)
	f.AddAll(cmd.Flags())
	return cmd
}

// followWorkloads shows one workload, or the running releases of a namespace or of all, until the command is interrupted.
func followWorkloads(s *session.Session) error {
	w := &watcher{driver: s.Client, display: s.Printer, inside: s.Hints.Inside, held: map[string]*pb.BatchContext{}}
	show := w.workload
	if s.Ref.GetName() == "" {
		show = w.workloads
	}
	return s.Explain(show(s.Context, s.Ref), "watch")
}

// watcher is one run of `lockstep watch`.
type watcher struct {
	driver  host.Watcher
	display interface {
		Observe(e host.Event)
		End(e host.Event)
	}
	// inside: the connection itself says what a driver inside this process waits for when it starts.
	inside bool
	// held has the workloads under hold. It is complete once synced is true.
	held   map[string]*pb.BatchContext
	synced bool
	// lost is true while the driver does not answer, reached once it has.
	lost, reached bool
}

// workload shows one workload.
func (w *watcher) workload(ctx context.Context, ref *pb.WorkloadRef) error {
	contexts := plugin.Follow(ctx, w.driver, &pb.WatchBatchContextRequest{Workload: ref, IncludeGroups: true})
	return host.Observe(contexts, func(c *pb.BatchContext) {
		w.found()
		w.display.Observe(view.StatusEvent(c))
	}, w.lose)
}

// workloads shows the releases that run in the namespace of ref, or without one in all.
func (w *watcher) workloads(ctx context.Context, ref *pb.WorkloadRef) error {
	changes := plugin.FollowWorkloads(ctx, w.driver, &pb.WatchWorkloadsRequest{Namespace: ref.GetNamespace(), IncludeGroups: true})
	return host.Observe(changes, func(r *pb.WatchWorkloadsResponse) {
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
	}, w.lose)
}

func (w *watcher) change(c *pb.BatchContext) {
	key := plugin.WorkloadKey(c.GetWorkload())
	ran := view.Running(w.held[key])
	w.held[key] = c
	switch {
	case view.Running(c):
		w.display.Observe(view.StatusEvent(c))
	case ran:
		w.display.End(view.StatusEvent(c))
		w.sayIdle()
	}
}

func (w *watcher) remove(ref *pb.WorkloadRef) {
	key := plugin.WorkloadKey(ref)
	last := w.held[key]
	delete(w.held, key)
	if view.Running(last) {
		w.display.End(host.Event{Kind: view.EventGone, Time: time.Now(), Message: "no longer under hold", Context: last})
		w.sayIdle()
	}
}

// sayIdle says that no release runs, since the display is empty then.
func (w *watcher) sayIdle() {
	// Until then some workloads are still unknown.
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
	w.say(view.EventIdle, text)
}

// lose reports once that the driver does not answer. One that has just started is not lost.
func (w *watcher) lose(err error) {
	what := "waiting for the driver: "
	if w.reached {
		what = "lost the driver, retrying: "
	}
	if !w.lost && (w.reached || !w.inside) {
		w.say(host.EventRetrying, what+session.Shorten(err).Error())
	}
	w.lost = true
}

// found reports that a lost driver answers again.
func (w *watcher) found() {
	if w.lost && w.reached {
		w.say(view.EventReconnected, "reconnected to the driver")
	}
	w.lost, w.reached = false, true
}

func (w *watcher) say(kind host.EventKind, message string) {
	w.display.Observe(host.Event{Kind: kind, Time: time.Now(), Message: message})
}
