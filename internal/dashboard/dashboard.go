// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dashboard serves a web page with the releases that a driver reports, as they change. It has no endpoint that writes.
//
//	d := dashboard.New(client, namespace, shorten, dashboard.Options{})
//	fmt.Println(d.URL(listener.Addr()))
//	err := d.Serve(ctx, listener)
//
// One stream of the driver serves all browsers, which get changes as server-sent events. A browser that reads slowly gets fewer
// states, always the newest, and delays no other. The page is HTML, CSS and one ES module, embedded in the binary.
package dashboard

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/informer/broadcast"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

//go:embed web
var web embed.FS

// Driver is the part of the contract that a dashboard needs. plugin.Client has it.
type Driver interface {
	host.Watcher
	ListRevisions(context.Context, *pb.ListRevisionsRequest, ...grpc.CallOption) (*pb.ListRevisionsResponse, error)
}

// Dashboard has the newest state of each workload under hold.
type Dashboard struct {
	driver    Driver
	namespace string
	shorten   func(error) error
	// secret is the first segment of each path. It keeps out other users of the machine, who reach the same loopback address.
	secret string

	// changed signals keys of workloads, and statusKey.
	changed broadcast.Broadcaster[string]

	mu        sync.Mutex
	status    pageStatus
	workloads map[string]*entry
}

// entry is a workload, and the message about it, which is encoded once for all browsers.
type entry struct {
	*workload
	ref     *pb.WorkloadRef
	message []byte
}

// pageStatus is what browsers get about the dashboard itself.
type pageStatus struct {
	Options

	Scope string `json:"scope"`
	// Synced reports whether every workload under hold is known.
	Synced bool `json:"synced"`
	// Lost says why the driver is unreachable, since LostSince. Empty means that it is reachable.
	Lost      string     `json:"lost"`
	LostSince *time.Time `json:"lostSince"`
}

// Options are what the page shows beside the driver's answers.
type Options struct {
	// Lockstep and Kubectl are flags of these programs that reach the same cluster, for the commands to copy.
	Lockstep string `json:"lockstep"`
	Kubectl  string `json:"kubectl"`
	// Links are titles and URLs of other pages about a workload. {namespace}, {name} and {reason} stand for what the workload has.
	Links [][2]string `json:"links"`
}

// statusKey is no key of a workload, and sorts before all of them.
const statusKey = ""

// New returns a dashboard of one namespace, or of all that the driver serves if it is empty. shorten removes gRPC's own wording from
// an error of the driver.
func New(driver Driver, namespace string, shorten func(error) error, options Options) *Dashboard {
	scope := "all namespaces"
	if namespace != "" {
		scope = "namespace " + namespace
	}
	return &Dashboard{
		driver: driver, namespace: namespace, shorten: shorten, secret: rand.Text(),
		status: pageStatus{Options: options, Scope: scope}, workloads: map[string]*entry{},
	}
}

// URL returns the address of the page at a listener.
func (d *Dashboard) URL(listener net.Addr) string {
	return fmt.Sprintf("http://%s/%s/", listener, d.secret)
}

const (
	headerTimeout = 10 * time.Second
	maxHeaders    = 16 << 10
)

// Serve serves the page until ctx ends, which is no error, or the driver refuses.
func (d *Dashboard) Serve(ctx context.Context, listener net.Listener) error {
	running, ctx := errgroup.WithContext(ctx)
	server := &http.Server{
		Handler: d.Handler(), ReadHeaderTimeout: headerTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeaders,
		// Requests inherit ctx, so that the streams of browsers end with the dashboard.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	running.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the dashboard: %w", err)
		}
		return nil
	})
	running.Go(func() error {
		// A page without its source would look current, so the server ends when the driver refuses.
		defer func() { _ = server.Close() }()
		return d.follow(ctx)
	})
	return running.Wait() //nolint:wrapcheck // The errors are those of the functions above.
}

// follow keeps the workloads up to date until ctx ends or the driver refuses.
func (d *Dashboard) follow(ctx context.Context) error {
	changes := plugin.FollowWorkloads(ctx, d.driver, &pb.WatchWorkloadsRequest{Namespace: d.namespace, IncludeGroups: true})
	return host.Observe(changes, d.observe, func(err error) {
		d.setStatus(func(s *pageStatus) {
			// The first failure is the time since when the page is outdated.
			if s.Lost = d.shorten(err).Error(); s.LostSince == nil {
				now := time.Now()
				s.LostSince = &now
			}
		})
	})
}

func (d *Dashboard) observe(r *pb.WatchWorkloadsResponse) {
	d.setStatus(func(s *pageStatus) {
		s.Lost, s.LostSince = "", nil
		s.Synced = s.Synced || r.GetSynced()
	})
	switch change := r.GetChange().(type) {
	case *pb.WatchWorkloadsResponse_Context:
		d.put(change.Context)
	case *pb.WatchWorkloadsResponse_Removed:
		d.mu.Lock()
		delete(d.workloads, plugin.WorkloadKey(change.Removed))
		d.mu.Unlock()
		d.changed.Notify(plugin.WorkloadKey(change.Removed))
	}
}

func (d *Dashboard) put(c *pb.BatchContext) {
	key := plugin.WorkloadKey(c.GetWorkload())
	d.mu.Lock()
	var before *workload
	// The state before has the time at which the workload entered its state, which the driver does not report.
	if known := d.workloads[key]; known != nil {
		before = known.workload
	}
	w := describeWorkload(c, before, time.Now())
	d.workloads[key] = &entry{workload: w, ref: c.GetWorkload(), message: encodeEvent("workload", w)}
	d.mu.Unlock()
	d.changed.Notify(key)
}

func (d *Dashboard) setStatus(change func(*pageStatus)) {
	d.mu.Lock()
	before := d.status
	change(&d.status)
	// A status that has not changed is not sent: each change of a workload sets it.
	changed := before.Synced != d.status.Synced || before.Lost != d.status.Lost
	d.mu.Unlock()
	if changed {
		d.changed.Notify(statusKey)
	}
}

// keys returns the keys of all messages.
func (d *Dashboard) keys() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append(slices.Collect(maps.Keys(d.workloads)), statusKey)
}

// message returns the server-sent event with the newest state of a key.
func (d *Dashboard) message(key string) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch known := d.workloads[key]; {
	case key == statusKey:
		return encodeEvent("status", d.status)
	case known == nil:
		return encodeEvent("removed", key)
	default:
		return known.message
	}
}

// encodeEvent returns a server-sent event with this name. JSON has no line break.
func encodeEvent(event string, data any) []byte {
	raw, err := json.Marshal(data)
	if err != nil {
		panic(fmt.Sprintf("encode %s: %v", event, err)) // the types are ours, and always encodable
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", event, raw)
}
