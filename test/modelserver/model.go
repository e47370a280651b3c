// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// model is the state of one pod.
type model struct {
	answer podanswer.Answer
	token  time.Duration

	// members is the number of workers that a leader is connected to, of all. A worker counts its leader.
	members, all atomic.Int64
	loaded       atomic.Bool
	// leaving is the number of workers that a leader is about to lose.
	leaving     atomic.Int64
	hanging     atomic.Bool
	terminating atomic.Bool
	requests    atomic.Int64

	registry  *prometheus.Registry
	firstTime prometheus.Histogram
	succeeded *prometheus.CounterVec
}

// cacheRequests is the number of requests that fill the cache.
const cacheRequests = 64

func newModel(token time.Duration) *model {
	m := &model{
		answer: podanswer.Answer{
			Namespace: os.Getenv("POD_NAMESPACE"), Pod: os.Getenv("POD_NAME"), Workload: os.Getenv("WORKLOAD"),
			Revision: os.Getenv("REVISION"), Group: os.Getenv("GROUP"), Role: podanswer.RoleLeader,
		},
		token:    token,
		registry: prometheus.NewRegistry(),
		firstTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "vllm:time_to_first_token_seconds", Buckets: prometheus.ExponentialBuckets(0.01, 2, 12),
		}),
		succeeded: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "vllm:request_success_total"}, []string{"finished_reason"}),
	}
	running := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "vllm:num_requests_running"}, func() float64 {
		return float64(m.requests.Load())
	})
	// An endpoint picker compares pods by these.
	waiting := prometheus.NewGauge(prometheus.GaugeOpts{Name: "vllm:num_requests_waiting"})
	cache := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "vllm:kv_cache_usage_perc"}, func() float64 {
		return min(1, float64(m.requests.Load())/cacheRequests)
	})
	blocks := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info", ConstLabels: prometheus.Labels{"block_size": "16", "num_gpu_blocks": "1024"},
	})
	blocks.Set(1)
	m.registry.MustRegister(running, waiting, cache, blocks, m.firstTime, m.succeeded)
	return m
}

// lead accepts workers and loads the model once all are there. A worker that goes takes the model with it.
func (m *model) lead(workers int, load time.Duration) {
	m.all.Store(int64(workers))
	if workers == 0 {
		m.load(load)
		return
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", ":"+strconv.Itoa(groupPort))
	if err != nil {
		log.Fatal(err)
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		if m.members.Add(1) == int64(workers) {
			go m.load(load)
		}
		go m.serveWorker(connection)
	}
}

// serveWorker returns when the worker is gone. One that says so before is kept while requests run.
func (m *model) serveWorker(connection net.Conn) {
	if n, _ := connection.Read(make([]byte, 1)); n > 0 {
		m.leaving.Add(1)
		defer m.leaving.Add(-1)
		for m.requests.Load() > 0 {
			time.Sleep(10 * time.Millisecond)
		}
	}
	m.loaded.Store(false)
	m.members.Add(-1)
	_ = connection.Close()
	log.Printf("a worker is gone: %s", connection.RemoteAddr())
}

func (m *model) load(duration time.Duration) {
	log.Printf("loading for %s", duration)
	time.Sleep(duration)
	if m.members.Load() == m.all.Load() {
		m.loaded.Store(true)
		log.Print("ready")
	}
}

// follow connects to the leader until this process is terminated. A worker that has lost its leader waits for its end: one that
// started anew could join the next group's leader, which is found at the same address.
func (m *model) follow(ctx context.Context, leader string) {
	connection := m.join(ctx, leader)
	if connection == nil {
		return
	}
	m.members.Store(1)
	m.loaded.Store(true)
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, connection)
		m.loaded.Store(false)
		log.Print("the leader is gone")
		close(gone)
	}()
	<-ctx.Done()
	if _, err := connection.Write([]byte{leave}); err == nil {
		<-gone
	}
}

// leave is what a worker sends before it goes.
const leave = 1

// join returns nil if the process is terminated before.
func (m *model) join(ctx context.Context, leader string) net.Conn {
	m.all.Store(1)
	for ctx.Err() == nil {
		connection, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", leader)
		if err == nil {
			return connection
		}
		log.Printf("connect to the leader: %v", err)
		time.Sleep(200 * time.Millisecond)
	}
	return nil
}

func (m *model) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /health", m.health)
	mux.HandleFunc("POST /v1/completions", m.complete)
	mux.HandleFunc("POST /fail", m.fail)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.hanging.Load() {
			<-r.Context().Done()
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (m *model) health(w http.ResponseWriter, _ *http.Request) {
	if !m.loaded.Load() || m.leaving.Load() > 0 {
		http.Error(w, fmt.Sprintf("%d of %d members are connected, one is leaving, or the model is not loaded", m.members.Load(), m.all.Load()),
			http.StatusServiceUnavailable)
	}
}

// identity returns who answers, and why not.
func (m *model) identity() podanswer.Answer {
	answer := m.answer
	answer.Terminating = m.terminating.Load()
	switch {
	case answer.Role == podanswer.RoleWorker:
		answer.Violation = podanswer.Worker
	case m.members.Load() < m.all.Load():
		answer.Violation = podanswer.GroupUnready
		answer.Detail = fmt.Sprintf("%d of %d workers are connected", m.members.Load(), m.all.Load())
	case !m.loaded.Load():
		answer.Violation = podanswer.Unready
	}
	return answer
}

// complete streams tokens.
func (m *model) complete(w http.ResponseWriter, r *http.Request) {
	answer := m.identity()
	raw, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set(podanswer.Header, string(raw))
	if answer.Violation != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	var request struct {
		MaxTokens int  `json:"max_tokens"`
		Stream    bool `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil || !request.Stream {
		http.Error(w, "want a JSON object with stream: true", http.StatusBadRequest)
		return
	}
	m.requests.Add(1)
	defer m.requests.Add(-1)
	begin := time.Now()
	w.Header().Set("Content-Type", "text/event-stream")
	controller := http.NewResponseController(w)
	for i := range max(1, request.MaxTokens) {
		select {
		case <-time.After(m.token):
		case <-r.Context().Done():
			m.succeeded.WithLabelValues("abort").Inc()
			return
		}
		if i == 0 {
			m.firstTime.Observe(time.Since(begin).Seconds())
		}
		if !m.loaded.Load() {
			// The engine has lost a worker: the connection breaks.
			panic(http.ErrAbortHandler)
		}
		fmt.Fprintf(w, "data: {\"object\": \"text_completion\", \"choices\": [{\"index\": 0, \"text\": \"%d \"}]}\n\n", i)
		if err := controller.Flush(); err != nil {
			return
		}
	}
	fmt.Fprint(w, "data: "+podanswer.Done+"\n\n")
	m.succeeded.WithLabelValues("stop").Inc()
}

// fail does what model servers do at times.
func (m *model) fail(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Query().Get("how") {
	case "exit":
		log.Print("exiting as asked")
		os.Exit(1)
	case "hang":
		m.hanging.Store(true)
	case "memory":
		var held [][]byte
		for {
			page := make([]byte, 1<<20)
			for i := range page {
				page[i] = 1
			}
			held = append(held, page)
			if len(held) > 1<<16 {
				return
			}
		}
	default:
		http.Error(w, "how: exit, hang or memory", http.StatusBadRequest)
	}
}
