// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockstep-rollouts/lockstep/test/cluster"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// staleFor is how long a frozen watch delays its events.
const staleFor = 400 * time.Millisecond

// proxy is between one driver and the API server, and injects faults into the driver's writes in its namespace. Events do not
// count as writes: nothing depends on them.
type proxy struct {
	writing    string // part of the path of each write that counts
	kubeconfig string
	forward    *httputil.ReverseProxy
	fault      fault

	mu      sync.Mutex
	opened  chan struct{} // closed while writes may pass
	writes  int
	faults  int
	crashed bool
	frozen  map[string]time.Time       // until when the watches of a resource are delayed
	streams map[int]context.CancelFunc // the open watches
	next    int
	expire  int      // how many of the next watches fail with 410 Gone
	refused []string // resources of which every read is refused with 429
}

// fault is what happens to a write. It runs once the request is read, and passes it on or not.
type fault struct {
	name string
	// every is the period in writes. 2: the retry of a refused write passes.
	every int
	do    func(p *proxy, pass func() *http.Response, w http.ResponseWriter)
}

// slow reports whether the fault is dominated by client-go's backoff between lists.
func (h fault) slow() bool { return h.name == "watches too old" || strings.HasPrefix(h.name, "any ") }

// newProxy starts a proxy that uses the driver's credentials.
func newProxy(t *testing.T, e *env, h fault) *proxy {
	t.Helper()
	cfg, err := clientcmd.BuildConfigFromFlags("", driver.Kubeconfig(t, e.cluster))
	require.NoError(t, err)
	cfg.QPS = -1
	transport, err := rest.TransportFor(cfg)
	require.NoError(t, err)
	target, err := url.Parse(cfg.Host)
	require.NoError(t, err)
	p := &proxy{writing: "/namespaces/" + e.namespace + "/", fault: h, opened: make(chan struct{}), frozen: map[string]time.Time{}, streams: map[int]context.CancelFunc{}}
	p.forward = &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(target) },
		ModifyResponse: p.delayWatch,
		// The client has disconnected, or the test has ended.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.drop()
		server.CloseClientConnections()
		server.Close()
	})
	p.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, cluster.WriteKubeconfig(&rest.Config{Host: server.URL}, p.kubeconfig))
	return p
}

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	refused := r.Method == http.MethodGet && slices.Contains(p.refused, path.Base(r.URL.Path))
	p.mu.Unlock()
	switch {
	case refused:
		refuse(w, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)
	case isWatch(r):
		p.watch(w, r)
	case r.Method == http.MethodGet || !strings.Contains(r.URL.Path, p.writing) || strings.Contains(r.URL.Path, "/events"):
		p.forward.ServeHTTP(w, r)
	default:
		p.write(w, r)
	}
}

// write injects the fault, or passes the request on.
func (p *proxy) write(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	opened := p.opened
	p.mu.Unlock()
	select {
	case <-opened:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler) // the driver has ended
	}
	p.mu.Lock()
	p.writes++
	met := p.fault
	inject := met.do != nil && (p.writes-1)%met.every == 0
	if inject {
		p.faults++
	}
	p.mu.Unlock()
	if !inject {
		p.forward.ServeHTTP(w, r)
		return
	}
	met.do(p, func() *http.Response {
		// The request is sent even if the driver disconnects.
		answer := httptest.NewRecorder()
		p.forward.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context())))
		return answer.Result()
	}, w)
}

// watch passes on a watch that can be dropped, expired and delayed.
func (p *proxy) watch(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	p.mu.Lock()
	if p.expire > 0 && r.URL.Query().Get("sendInitialEvents") == "" {
		p.expire--
		p.mu.Unlock()
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	id := p.next
	p.next++
	p.streams[id] = cancel
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.streams, id)
	}()
	p.forward.ServeHTTP(w, r.WithContext(ctx))
}

// drop ends every watch.
func (p *proxy) drop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.streams {
		cancel()
	}
}

// refuseReads ends every watch, and refuses reads of these resources from now on.
func (p *proxy) refuseReads(resources ...string) {
	p.mu.Lock()
	p.refused = resources
	p.mu.Unlock()
	p.drop()
}

// meet makes writes meet a fault from now on.
func (p *proxy) meet(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = f
}

// open lets writes pass, at the start and after a crash.
func (p *proxy) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.crashed = false
	close(p.opened)
}

// crash kills the driver. No write passes until open is called.
func (p *proxy) crash(d *driver.Driver) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashed {
		return
	}
	p.crashed, p.opened = true, make(chan struct{})
	d.Crash()
}

func (p *proxy) hasCrashed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.crashed
}

// freeze delays the watches of these resources.
func (p *proxy) freeze(by time.Duration, resources ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, resource := range resources {
		p.frozen[resource] = time.Now().Add(by)
	}
}

// delayWatch makes the body of a watch subject to freeze.
func (p *proxy) delayWatch(r *http.Response) error {
	if isWatch(r.Request) {
		parts := strings.Split(r.Request.URL.Path, "/")
		r.Body = &frozenReader{r.Body, p, parts[len(parts)-1]}
	}
	return nil
}

type frozenReader struct {
	io.ReadCloser
	proxy    *proxy
	resource string
}

func (f *frozenReader) Read(b []byte) (int, error) {
	n, err := f.ReadCloser.Read(b)
	f.proxy.mu.Lock()
	until := f.proxy.frozen[f.resource]
	f.proxy.mu.Unlock()
	time.Sleep(time.Until(until))
	return n, err
}

// refuse answers with an error Status, as the API server does.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(code)
	_, _ = io.WriteString(w, asJSON(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code),
		Reason: reason, Message: "injected " + http.StatusText(code),
	}))
}

// answer passes the API server's answer on.
func answer(w http.ResponseWriter, r *http.Response) {
	for key, values := range r.Header {
		w.Header()[key] = values
	}
	w.WriteHeader(r.StatusCode)
	_, _ = io.Copy(w, r.Body)
}

func refusing(name string, code int, reason metav1.StatusReason) fault {
	return fault{name: name, every: 2, do: func(_ *proxy, _ func() *http.Response, w http.ResponseWriter) { refuse(w, code, reason) }}
}

// The kinds of faults. A write is refused once and its retry passes; answers are lost and caches are stale at every write.
var faultKinds = []fault{
	refusing("409", http.StatusConflict, metav1.StatusReasonConflict),
	refusing("429", http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests),
	refusing("500", http.StatusInternalServerError, metav1.StatusReasonInternalError),
	refusing("504", http.StatusGatewayTimeout, metav1.StatusReasonTimeout),
	{"connection cut before the write", 2, func(*proxy, func() *http.Response, http.ResponseWriter) { panic(http.ErrAbortHandler) }},
	{"answer lost", 1, func(_ *proxy, pass func() *http.Response, _ http.ResponseWriter) {
		pass()
		panic(http.ErrAbortHandler)
	}},
	// An informer backs off longer each time it loses its watch.
	{"watches dropped", 3, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		r := pass()
		p.drop()
		answer(w, r)
	}},
	{"watches too old", 3, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		p.mu.Lock()
		p.expire = len(p.streams)
		p.mu.Unlock()
		p.drop()
		answer(w, pass())
	}},
	{"pods and revisions stale", 1, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		p.freeze(staleFor, "pods", "controllerrevisions")
		answer(w, pass())
	}},
	{"workloads stale", 1, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		p.freeze(staleFor, "leaderworkersets", "disaggregatedsets", "replicabounds")
		answer(w, pass())
	}},
}

// killing is a fault that kills a driver at every write, before it gets the answer or right after.
func killing(d *driver.Driver, late bool) fault {
	return fault{fmt.Sprintf("killed, answered=%t", late), 1, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		r := pass() //nolint:bodyclose // It is in memory.
		if late {
			answer(w, r)
			_ = http.NewResponseController(w).Flush()
		}
		p.crash(d)
	}}
}

// randomFault is a random kind of fault at each write, sometimes none. A seed always gives the same sequence.
func randomFault(seed uint64) fault {
	random, all := rand.New(rand.NewPCG(seed, seed)), faultKinds
	return fault{fmt.Sprintf("any %d", seed), 1, func(p *proxy, pass func() *http.Response, w http.ResponseWriter) {
		p.mu.Lock()
		n := random.IntN(len(all) + 3)
		p.mu.Unlock()
		if n < len(all) {
			all[n].do(p, pass, w)
			return
		}
		answer(w, pass()) //nolint:bodyclose // It is in memory.
	}}
}
