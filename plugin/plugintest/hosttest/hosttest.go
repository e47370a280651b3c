// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosttest is for tests of hosts and commands. [New] is a fake driver with one workload. [CampaignRequiresCaches] checks, on an
// API server without objects, that a host with controllers campaigns for its Lease only once all its caches are filled, and
// [StopsWithoutCaches] that it stops before.
package hosttest

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/plugin/host"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Kind is a kind that a host watches. The API server has the kinds of all groups but the core group.
type Kind struct {
	schema.GroupVersionKind

	Resource string
}

// timeout bounds the wait for a condition.
const timeout = 20 * time.Second

// Run runs a host until ctx ends.
type Run func(context.Context, *rest.Config, host.Settings) error

// CampaignRequiresCaches runs a host on an API server that allows to list one of its kinds after the other. The host must name
// the others in its readiness, and make no request for its Lease before it may list all.
func CampaignRequiresCaches(t *testing.T, run Run, kinds ...Kind) {
	t.Helper()
	s, stop := start(t, run, kinds)
	for i, kind := range kinds {
		body := s.readiness(t)
		for _, k := range kinds[i:] {
			if want := "[-]cache-of-" + k.Kind + " failed"; !strings.Contains(body, want) {
				t.Errorf("readiness %q does not contain %q", body, want)
			}
		}
		if n := s.count("leases"); n > 0 {
			t.Errorf("%d requests for the Lease without the cache of %s", n, kind.Kind)
		}
		s.allow(kind)
		await.True(t, "the cache of "+kind.Kind+" is filled", func() bool {
			body := s.readiness(t)
			return body == "ok" || strings.Contains(body, "[+]cache-of-"+kind.Kind+" ok")
		})
	}
	await.True(t, "the host campaigns", func() bool { return s.count("leases") > 0 })
	stop()
}

// StopsWithoutCaches runs a host on an API server that refuses to list its kinds. The host must stop.
func StopsWithoutCaches(t *testing.T, run Run, kinds ...Kind) {
	t.Helper()
	s, stop := start(t, run, kinds)
	stop()
	for _, kind := range kinds {
		s.allow(kind) // controller-runtime's own goroutine ends only now
	}
}

// Refuses runs a host on an API server that serves the given documents only, by path. The host must end with an error that says want.
func Refuses(t *testing.T, run Run, documents map[string]string, want string) {
	t.Helper()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		text, ok := documents[req.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			text = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`
		}
		fmt.Fprint(w, text)
	}))
	defer web.Close()
	err := run(t.Context(), &rest.Config{Host: web.URL}, host.Settings{Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want one that says %q", err, want)
	}
}

// start runs a host, and returns once it was refused to list each kind. stop stops it and waits.
func start(t *testing.T, run Run, kinds []Kind) (s *server, stop func()) {
	t.Helper()
	s = &server{kinds: kinds, allowed: map[string]bool{}, requests: map[string]int{}, health: freeAddress(t)}
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		web.CloseClientConnections()
		web.Close()
	})
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() {
		ended <- run(ctx, &rest.Config{Host: web.URL}, host.Settings{
			Logger: slog.New(slog.DiscardHandler), LeaderElection: true, LeaderElectionNamespace: "default", HealthAddress: s.health,
		})
	}()
	for _, kind := range kinds {
		await.True(t, "the host lists "+kind.Resource, func() bool { return s.count(kind.Resource) > 0 })
	}
	return s, func() {
		t.Helper()
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the host ended: %v", err)
			}
		case <-time.After(timeout):
			t.Error("the host does not stop")
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// server is an API server without objects. It refuses requests for Leases.
type server struct {
	kinds  []Kind
	health string // the host's address

	mu       sync.Mutex
	allowed  map[string]bool // resources that may be listed
	requests map[string]int  // by resource
}

func (s *server) allow(k Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allowed[k.Resource] = true
}

// count returns the number of requests for a resource.
func (s *server) count(resource string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests[resource]
}

// readiness returns the host's answer.
func (s *server) readiness(t *testing.T) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.health+"/readyz", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func (s *server) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch req.URL.Path {
	case "/api":
		fmt.Fprint(w, `{"kind": "APIVersions"}`)
		return
	case "/apis":
		fmt.Fprintf(w, `{"kind": "APIGroupList", "groups": [%s]}`, s.join(func(k Kind) string {
			return fmt.Sprintf(`{"name": %q, "versions": [{"groupVersion": %q, "version": %q}]}`, k.Group, k.GroupVersion(), k.Version)
		}))
		return
	}
	for _, k := range s.kinds {
		switch path := "/apis/" + k.GroupVersion().String(); req.URL.Path {
		case path:
			fmt.Fprintf(w, `{"kind": "APIResourceList", "groupVersion": %q, "resources": [{"name": %q, "kind": %q}]}`,
				k.GroupVersion(), k.Resource, k.Kind)
			return
		case path + "/" + k.Resource:
			s.mu.Lock()
			s.requests[k.Resource]++
			allowed := s.allowed[k.Resource]
			s.mu.Unlock()
			if allowed {
				list(w, req, k)
				return
			}
		}
	}
	if strings.Contains(req.URL.Path, "/leases") {
		s.mu.Lock()
		s.requests["leases"]++
		s.mu.Unlock()
	}
	code, reason := http.StatusForbidden, "Forbidden"
	if strings.Contains(req.URL.Path, "/mutatingwebhookconfigurations/") {
		code, reason = http.StatusNotFound, "NotFound"
	}
	w.WriteHeader(code)
	fmt.Fprintf(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code)
}

// join returns the JSON of all kinds.
func (s *server) join(render func(Kind) string) string {
	all := make([]string, 0, len(s.kinds))
	for _, k := range s.kinds {
		all = append(all, render(k))
	}
	return strings.Join(all, ",")
}

// list answers a list or watch: there are no objects.
func list(w http.ResponseWriter, req *http.Request, k Kind) {
	version, kind := k.GroupVersion().String(), k.Kind
	if strings.Contains(req.Header.Get("Accept"), "as=PartialObjectMetadata") {
		version, kind = "meta.k8s.io/v1", "PartialObjectMetadata"
	}
	if req.URL.Query().Get("watch") == "" {
		fmt.Fprintf(w, `{"kind": "%sList", "apiVersion": %q, "metadata": {"resourceVersion": "1"}, "items": []}`, kind, version)
		return
	}
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		fmt.Fprintf(w, `{"type": "BOOKMARK", "object": {"kind": %q, "apiVersion": %q,
			"metadata": {"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}}}}`, kind, version)
	}
	_ = http.NewResponseController(w).Flush()
	<-req.Context().Done()
}

// Driver is a fake driver with one workload. See New.
type Driver struct{ *plugintest.FakeDriver }

// New returns a driver with one workload, default/vllm, of 4 groups of 2 pods: adopted, at revision "aaaa", with a
// template of revision "bbbb" that waits to be released.
func New() *Driver {
	d := &Driver{plugintest.NewFakeDriver()}
	d.SetWorkload("default", "vllm", 4, "aaaa")
	d.Set(func(c *pb.BatchContext) {
		c.State, c.Reason, c.Message = pb.State_STATE_HOLDING, "AtRest", "held at rest"
		c.Size, c.Partition = 2, 1000000
	})
	d.SetWorkload("default", "vllm", 4, "bbbb")
	return d
}

// Set changes the context, as the cluster would.
func (d *Driver) Set(change func(c *pb.BatchContext)) { d.FakeDriver.Set("default", "vllm", change) }

// Context returns a copy of the context.
func (d *Driver) Context() *pb.BatchContext { return d.FakeDriver.Context("default", "vllm") }

// Await returns once the context and the calls satisfy the condition, or ctx ends.
func (d *Driver) Await(ctx context.Context, condition func(c *pb.BatchContext, calls []string) bool) error {
	return d.FakeDriver.Await(ctx, "default", "vllm", condition)
}

// Serve serves a driver until the test ends. Its router is the driver, if that is one.
func Serve(t testing.TB, driver pb.WorkloadDriverServer) *plugintest.Server {
	t.Helper()
	router, _ := driver.(pb.TrafficRouterServer)
	return plugintest.NewServer(t, driver, router)
}
