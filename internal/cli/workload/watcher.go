// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/session"
	"github.com/lockstep-rollouts/lockstep/internal/eventwatch"
	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/internal/host/screen"
	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	"github.com/lockstep-rollouts/lockstep/internal/sleep"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// watcher is one run of `lockstep watch`.
type watcher struct {
	*connect.Link

	// namespace is the one that is watched. Empty: all.
	namespace string
	// only is the workload that is watched. Nil: all under hold.
	only *pb.WorkloadRef
	// events is nil if there are none, and noEvents says why.
	events   typedcorev1.EventsGetter
	noEvents string
	// logs is the driver's log while the screen is shown.
	logs  *relay
	hints session.Hints
}

// eventsOf returns a client of the driver's cluster. The current context of the kubeconfig may be another cluster than that of
// a driver at an address, so there the user has to choose one.
func (f *watchFlags) eventsOf(cmd *cobra.Command, o *connect.Options) (client typedcorev1.EventsGetter, why string) {
	named := cmd.Flags().Changed("kubeconfig") || cmd.Flags().Changed("context")
	if f.dial.Address != "" && !named {
		return nil, "with --address, events need --kubeconfig or --context of the driver's cluster"
	}
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err.Error()
	}
	events, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return nil, err.Error()
	}
	return events, ""
}

func (w *watcher) explain(err error) error {
	what := "watch releases"
	if w.only != nil {
		what = "watch " + w.only.GetNamespace() + "/" + w.only.GetName()
	}
	return session.Explain(w.Cause(err), what, w.hints)
}

// screen shows releases full-screen, and prints the last status on out at the end.
func (w *watcher) screen(ctx context.Context, s *screen.Screen, t screen.Terminal, out io.Writer) error {
	chosen := newChoice()
	err := screen.Run(ctx, t, s, func(ctx context.Context, send func(any)) error {
		w.logs.to(func(line string) { send(screen.Log(line)) })
		defer w.logs.to(nil)
		return w.feed(ctx, chosen, send)
	}, chosen.set)
	for _, line := range s.Summary() {
		_, _ = fmt.Fprintln(out, line)
	}
	return err
}

// feed sends updates until ctx ends or the driver refuses.
func (w *watcher) feed(ctx context.Context, chosen *choice, send func(any)) error {
	running, ctx := errgroup.WithContext(ctx)
	follower := &host.Follower{Driver: w.Client, Lost: func(err error) { send(screen.Lost{From: screen.FromDriver, Err: session.Shorten(err)}) }}
	if w.only == nil {
		running.Go(func() error {
			return follower.Workloads(ctx, &pb.WatchWorkloadsRequest{Namespace: w.namespace}, func(r *pb.WatchWorkloadsResponse) {
				send(screen.Change{WatchWorkloadsResponse: r})
			})
		})
	}
	running.Go(func() error { return w.details(ctx, follower, chosen, send) })
	if w.events != nil {
		running.Go(func() error {
			err := eventwatch.Follow(ctx, w.events, w.namespace, receiver(send))
			if err != nil {
				send(screen.NoEvents(err.Error()))
			}
			return nil
		})
	}
	return running.Wait() //nolint:wrapcheck // The errors are those of the functions above.
}

// recreatedAfter is the time between attempts to follow a workload that is gone, in case it is created again.
const recreatedAfter = 2 * time.Second

// details follows the selected workload.
func (w *watcher) details(ctx context.Context, follower *host.Follower, chosen *choice, send func(any)) error {
	seen := false
	for ctx.Err() == nil {
		ref, another := chosen.get()
		if ref == nil {
			waitFor(ctx, another)
			continue
		}
		one, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			waitFor(one, another)
		}()
		err := follower.Workload(one, ref, func(c *pb.BatchContext) {
			seen = true
			send(screen.Detail{BatchContext: c})
		})
		stop()
		switch {
		case err == nil:
			continue
		case w.only != nil && !seen:
			return err
		case w.only != nil:
			send(screen.Missing{Err: session.Shorten(err)})
			sleep.For(ctx, recreatedAfter)
			continue
		}
		// The list shows that it is gone.
		waitFor(ctx, another)
	}
	return nil
}

func waitFor(ctx context.Context, happened <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-happened:
	}
}

func receiver(send func(any)) eventwatch.Receiver {
	return eventwatch.Receiver{
		Event: func(e *corev1.Event, deleted bool) {
			send(screen.Event{
				ID: e.Namespace + "/" + e.Name, Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name,
				At: eventwatch.At(e), Type: e.Type, Reason: e.Reason, Message: e.Message, Deleted: deleted,
			})
		},
		Lost:  func(err error) { send(screen.Lost{From: screen.FromCluster, Err: err}) },
		Found: func() { send(screen.Found{From: screen.FromCluster}) },
	}
}

// lines prints one line per change.
func (w *watcher) lines(ctx context.Context, out io.Writer) error {
	if w.only != nil {
		printer := view.NewLines(out, time.Now())
		defer printer.Close()
		follower, back := w.reporting(printer.Observe)
		return follower.Workload(ctx, w.only, func(c *pb.BatchContext) {
			back()
			printer.Observe(host.Event{Kind: view.EventStatus, Time: time.Now(), Context: c})
		})
	}
	printer := view.NewMultiLines(out, time.Now())
	defer printer.Close()
	follower, back := w.reporting(printer.Observe)
	return follower.Workloads(ctx, &pb.WatchWorkloadsRequest{Namespace: w.namespace, IncludeGroups: true},
		func(r *pb.WatchWorkloadsResponse) {
			back()
			switch change := r.GetChange().(type) {
			case *pb.WatchWorkloadsResponse_Context:
				printer.Observe(host.Event{Kind: view.EventStatus, Time: time.Now(), Context: change.Context})
			case *pb.WatchWorkloadsResponse_Removed:
				printer.Gone(change.Removed, time.Now())
			}
		})
}

// reporting returns a follower that reports a lost connection once. back reports that it is restored.
func (w *watcher) reporting(say func(host.Event)) (follower *host.Follower, back func()) {
	lost := false
	tell := func(now bool, message string) {
		if lost != now {
			lost = now
			say(host.Event{Kind: host.EventRetrying, Time: time.Now(), Message: message})
		}
	}
	follower = &host.Follower{Driver: w.Client, Lost: func(err error) {
		tell(true, "lost the driver, retrying: "+session.Shorten(err).Error())
	}}
	return follower, func() { tell(false, "reconnected to the driver") }
}

// choice is the selected workload.
type choice struct {
	mu      sync.Mutex
	ref     *pb.WorkloadRef
	another chan struct{} // closed when it changes
}

func newChoice() *choice { return &choice{another: make(chan struct{})} }

func (c *choice) set(ref *pb.WorkloadRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ref = ref
	close(c.another)
	c.another = make(chan struct{})
}

// get returns the workload, nil without one, and a channel that is closed when it changes.
func (c *choice) get() (ref *pb.WorkloadRef, another <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ref, c.another
}

// relay forwards log lines to a screen while it is shown.
type relay struct {
	mu   sync.Mutex
	send func(line string)
}

func (r *relay) to(send func(line string)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.send = send
}

// Write forwards whole lines, or drops them without a screen.
func (r *relay) Write(p []byte) (int, error) {
	r.mu.Lock()
	send := r.send
	r.mu.Unlock()
	if send != nil {
		for line := range strings.Lines(string(p)) {
			send(line)
		}
	}
	return len(p), nil
}
