// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package poolgateway stands in for a gateway that supports InferencePools: no such gateway can be built from Go modules. It does what
// one does for an HTTPRoute with one rule:
//
//   - It splits requests between the rule's InferencePools by their weights.
//   - It asks the endpoint picker of the pool, over Envoy's ext-proc protocol, which endpoint to use, and sends the request there.
//   - It reports Accepted and ResolvedRefs on the route, and on the pools that the route refers to, once they are in force.
//
// It ignores hostnames, matches, filters and the failure mode of pools. A request without an endpoint fails: nothing is retried.
package poolgateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// Gateway serves one HTTPRoute.
type Gateway struct {
	namespace, route string
	dynamic          dynamic.Interface
	kube             kubernetes.Interface
	server           *http.Server
	address          string
	transport        *http.Transport
	running          sync.WaitGroup

	mu          sync.Mutex
	table       *Table
	connections map[string]*grpc.ClientConn // by the picker's address
	choices     []Choice
	err         error // of the watch
}

// Table is what a route said until it changed.
type Table struct {
	// Weights are those of its pools.
	Weights  map[string]int
	backends []*backend
}

// Choice is the endpoint of a request.
type Choice struct {
	// Table is the one that was in force, nil if there was none.
	Table *Table
	// Pool is the InferencePool that the weights gave the request to.
	Pool string
	// Endpoint is the address that the pool's picker chose, "" if it chose none.
	Endpoint string
	// Answer is what the pod there says about itself, zero if it did not answer.
	Answer podanswer.Answer
	// Err is why the request failed before a pod answered.
	Err error
}

// Start starts a gateway for a route, on an address of its own. It ends with [Gateway.Stop].
func Start(ctx context.Context, config *rest.Config, namespace, route string) (*Gateway, error) {
	g := &Gateway{
		namespace: namespace, route: route,
		transport:   &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Second, DisableCompression: true},
		connections: map[string]*grpc.ClientConn{},
	}
	var err error
	if g.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	if g.kube, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	g.address = listener.Addr().String()
	g.server = &http.Server{Handler: g, ReadHeaderTimeout: time.Minute}
	ctx, cancel := context.WithCancel(ctx)
	g.server.RegisterOnShutdown(cancel)
	g.running.Go(func() { _ = g.server.Serve(listener) })
	g.running.Go(func() { g.watch(ctx) })
	return g, nil
}

// Stop ends the gateway, after its requests. It returns what failed meanwhile, beside requests.
func (g *Gateway) Stop() error {
	err := g.server.Shutdown(context.Background())
	g.running.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	err = errors.Join(err, g.err)
	for _, connection := range g.connections {
		err = errors.Join(err, connection.Close())
	}
	g.transport.CloseIdleConnections()
	return err
}

// Address returns the host and port on which requests are served.
func (g *Gateway) Address() string { return g.address }

// Choices returns the choices so far, in the order in which requests completed or failed.
func (g *Gateway) Choices() []Choice {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]Choice(nil), g.choices...)
}

// backend is a pool with a share of the requests.
type backend struct {
	pool   string
	picker string // the address of its endpoint picker
	weight int
	credit int
}

// next returns the pool of the next request, by smooth weighted round robin: of any number of requests, each pool gets its share to
// within one request. It returns nil without a pool.
func (t *Table) next() *backend {
	var chosen *backend
	sum := 0
	for _, b := range t.backends {
		sum += b.weight
		b.credit += b.weight
		if b.weight > 0 && (chosen == nil || b.credit > chosen.credit) {
			chosen = b
		}
	}
	if chosen != nil {
		chosen.credit -= sum
	}
	return chosen
}

// choose fills in the pool of the next request, and returns a connection to its picker.
func (g *Gateway) choose(choice *Choice) (*grpc.ClientConn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.table == nil {
		return nil, fmt.Errorf("HTTPRoute %s is not in force", g.route)
	}
	b := g.table.next()
	if b == nil {
		return nil, fmt.Errorf("HTTPRoute %s has no pool with a weight", g.route)
	}
	choice.Table, choice.Pool = g.table, b.pool
	connection := g.connections[b.picker]
	if connection == nil {
		var err error
		if connection, err = connect(b.picker); err != nil {
			return nil, err
		}
		g.connections[b.picker] = connection
	}
	return connection, nil
}

// connect connects to a picker. Its certificate is self-signed unless it is given one, and gateways accept any by default.
func connect(address string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}))
}

// ServeHTTP sends a request to the endpoint that a picker chooses.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var choice Choice
	defer func() { // also if the response breaks
		g.mu.Lock()
		defer g.mu.Unlock()
		g.choices = append(g.choices, choice)
	}()
	choice.Err = g.serve(w, r, &choice)
	if choice.Err != nil && choice.Answer.Pod == "" {
		http.Error(w, choice.Err.Error(), http.StatusServiceUnavailable)
	}
}

func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, choice *Choice) error {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return fmt.Errorf("read the request: %w", err)
	}
	picker, err := g.choose(choice)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	picked, err := pick(ctx, picker, r, body)
	if err != nil {
		return fmt.Errorf("ask the endpoint picker of InferencePool %s: %w", choice.Pool, err)
	}
	choice.Endpoint = picked.endpoint
	request, err := http.NewRequestWithContext(ctx, r.Method, "http://"+picked.endpoint+r.URL.RequestURI(), bytes.NewReader(picked.body))
	if err != nil {
		return err
	}
	request.Header = r.Header.Clone()
	request.Header.Set(endpointHeader, picked.endpoint)
	response, err := g.transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("send to an endpoint of InferencePool %s: %w", choice.Pool, err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.Unmarshal([]byte(response.Header.Get(podanswer.Header)), &choice.Answer); err != nil {
		return fmt.Errorf("read the pod's answer (%s): %w", response.Status, err)
	}
	if err := picked.responds(response); err != nil {
		return err
	}
	relay(w, response)
	return picked.ends()
}

// relay copies a response as it streams. One that breaks breaks the client's, too.
func relay(w http.ResponseWriter, response *http.Response) {
	for name, values := range response.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(response.StatusCode)
	controller := http.NewResponseController(w)
	buffer := make([]byte, 32<<10)
	for {
		n, err := response.Body.Read(buffer)
		if _, failed := w.Write(buffer[:n]); failed != nil || controller.Flush() != nil {
			return
		}
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(http.ErrAbortHandler)
		}
	}
}

// pickerOf returns the address of a pool's endpoint picker.
func (g *Gateway) pickerOf(ctx context.Context, p pool) (string, error) {
	service, err := g.kube.CoreV1().Services(g.namespace).Get(ctx, p.Spec.Picker.Name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(service.Spec.ClusterIP, strconv.Itoa(p.Spec.Picker.Port.Number)), nil
}
