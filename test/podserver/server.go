// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	disaggregated "sigs.k8s.io/lws/api/disaggregatedset/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// Port is the port of pods.
const Port = podanswer.Port

// longest is the maximum duration of a request.
const longest = 5 * time.Minute

// Server serves for all pods of a cluster. [Start] starts it.
type Server struct {
	pods   *pods
	http   *http.Server
	grpc   *grpc.Server
	client *http.Client // for requests to other pods
	cancel context.CancelFunc
	served chan error

	mu       sync.Mutex
	counts   map[string]*Count
	inFlight map[string]int
}

// Start listens on 0.0.0.0:[Port] and waits for the pods' cache. It serves until Stop or until ctx ends.
func Start(ctx context.Context, cluster *rest.Config) (*Server, error) {
	client, err := kubernetes.NewForConfig(cluster)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	return start(ctx, client, net.JoinHostPort("0.0.0.0", strconv.Itoa(Port)))
}

func start(ctx context.Context, client kubernetes.Interface, address string) (*Server, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}, cancel: cancel, served: make(chan error, 1), counts: map[string]*Count{}, inFlight: map[string]int{}}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: time.Minute, Protocols: &http.Protocols{}}
	s.http.Protocols.SetHTTP1(true)
	s.http.Protocols.SetUnencryptedHTTP2(true) // gRPC
	s.grpc = grpc.NewServer()
	s.grpc.RegisterService(&service, s)
	var err error
	if s.pods, err = watchPods(ctx, client); err != nil {
		cancel()
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", address)
	if err != nil {
		cancel()
		return nil, err
	}
	go func() { s.served <- s.http.Serve(listener) }()
	context.AfterFunc(ctx, func() { _ = s.http.Close() })
	return s, nil
}

// Stop stops the server and its requests. It returns an error if the server had ended before.
func (s *Server) Stop() error {
	s.cancel()
	if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve pods: %w", err)
	}
	return nil
}

// Counts returns the requests to each pod so far, by namespace and name, e.g. "default/vllm-0", or by address if there was no pod.
// It counts every request, with or without a gateway.
func (s *Server) Counts() map[string]Count {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]Count, len(s.counts))
	for name, count := range s.counts {
		all[name] = Count{Requests: count.Requests, Violations: maps.Clone(count.Violations)}
	}
	return all
}

// ServeHTTP serves for the pod whose address is the connection's local one. With ?duration=3s it takes that long. GET /metrics has
// vllm:num_requests_running, the requests that this pod serves; it is not counted. Calls of [Method] are gRPC.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
		s.grpc.ServeHTTP(w, r)
		return
	}
	address := localAddress(r.Context())
	pod, answer := s.find(r.Context(), address)
	name := address
	if pod != nil {
		name = pod.Namespace + "/" + pod.Name
	}
	if r.Method == http.MethodGet && r.URL.Path == "/metrics" {
		s.metrics(w, name, answer)
		return
	}
	duration, err := durationOf(r.URL.Query().Get("duration"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// The server notices that a client disconnects only after it has read the body.
	_, _ = io.Copy(io.Discard, r.Body)
	answer = s.serve(r.Context(), pod, answer, duration)
	w.Header().Set("Content-Type", "application/json")
	if answer.Violation != "" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	// The client may have disconnected.
	_ = json.NewEncoder(w).Encode(answer)
}

// serve counts a request, and takes its duration.
func (s *Server) serve(ctx context.Context, pod *corev1.Pod, answer podanswer.Answer, duration time.Duration) podanswer.Answer {
	name := localAddress(ctx)
	if pod != nil {
		name = pod.Namespace + "/" + pod.Name
	}
	s.begin(name)
	calls := pod != nil && pod.Annotations[AnnotationCalls] != "" && answer.Violation == ""
	if calls {
		duration /= 2
	}
	if answer.Violation == "" && duration > 0 {
		s.take(ctx, pod, &answer, duration)
	}
	if calls && answer.Violation == "" {
		s.call(ctx, pod, &answer, duration)
	}
	s.end(name, answer.Violation)
	return answer
}

func durationOf(text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("duration: %w", err)
	}
	return min(duration, longest), nil
}

// take waits for the request's duration, or until its pod ends.
func (s *Server) take(ctx context.Context, pod *corev1.Pod, answer *podanswer.Answer, duration time.Duration) {
	begin, timer := time.Now(), time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.pods.ended(pod):
		answer.Violation = podanswer.Cut
		answer.Detail = fmt.Sprintf("the pod ended after %s of %s", time.Since(begin).Round(time.Millisecond), duration)
	case <-ctx.Done():
		answer.Violation, answer.Detail = podanswer.Cut, "the client disconnected"
	}
}

// find returns the pod at the address, and its answer. It checks a violation again with the API server, because the cache may lag
// behind that of the gateway.
func (s *Server) find(ctx context.Context, address string) (*corev1.Pod, podanswer.Answer) {
	pod, err := s.pods.at(address)
	if err == nil && pod != nil && Ready(pod) && roleOf(pod) != podanswer.RoleLeader {
		return pod, judge(pod, nil)
	}
	if err == nil && pod != nil {
		var members []*corev1.Pod
		if members, err = s.pods.group(pod); err == nil {
			if answer := judge(pod, members); answer.Violation == "" {
				return pod, answer
			}
		}
	}
	var members []*corev1.Pod
	if pod, err = s.pods.liveAt(ctx, address); err == nil && pod != nil {
		members, err = s.pods.liveGroup(ctx, pod)
	}
	if err != nil {
		return nil, podanswer.Answer{Violation: podanswer.Gone, Detail: err.Error()}
	}
	return pod, judge(pod, members)
}

// judge returns the answer of a pod of a group.
func judge(pod *corev1.Pod, members []*corev1.Pod) podanswer.Answer {
	if pod == nil {
		return podanswer.Answer{Violation: podanswer.Gone, Detail: "no pod has this address"}
	}
	answer := podanswer.Answer{
		Namespace: pod.Namespace, Pod: pod.Name, Workload: pod.Labels[lws.SetNameLabelKey], Role: roleOf(pod),
		Revision: pod.Labels[lws.RevisionKey], Group: pod.Labels[lws.GroupIndexLabelKey], Terminating: pod.DeletionTimestamp != nil,
		SetRevision: pod.Labels[disaggregated.RevisionLabelKey],
	}
	switch {
	case answer.Role == podanswer.RoleWorker:
		answer.Violation = podanswer.Worker
	case !Ready(pod):
		answer.Violation, answer.Detail = podanswer.Unready, sinceUnready(pod)
	case answer.Role == podanswer.RoleLeader:
		if ok, detail := whole(pod, members); !ok {
			answer.Violation, answer.Detail = podanswer.GroupUnready, detail
		}
	}
	return answer
}

func sinceUnready(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return "since " + condition.LastTransitionTime.Format(time.RFC3339)
		}
	}
	return "the pod has never been ready"
}

func roleOf(pod *corev1.Pod) string {
	switch {
	case pod.Labels[lws.SetNameLabelKey] == "":
		return ""
	case pod.Labels[lws.WorkerIndexLabelKey] == "0":
		return podanswer.RoleLeader
	default:
		return podanswer.RoleWorker
	}
}

func (s *Server) metrics(w http.ResponseWriter, name string, answer podanswer.Answer) {
	if answer.Violation == podanswer.Gone || answer.Violation == podanswer.Unready {
		http.Error(w, string(answer.Violation), http.StatusServiceUnavailable)
		return
	}
	s.mu.Lock()
	running := s.inFlight[name]
	s.mu.Unlock()
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = fmt.Fprintf(w, "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{model_name=\"model\"} %d\n", running)
}

func (s *Server) begin(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[name] == nil {
		s.counts[name] = &Count{Violations: map[podanswer.Violation]int{}}
	}
	s.counts[name].Requests++
	s.inFlight[name]++
}

func (s *Server) end(name string, violation podanswer.Violation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inFlight[name]--; s.inFlight[name] == 0 {
		delete(s.inFlight, name)
	}
	if violation != "" {
		s.counts[name].Violations[violation]++
	}
}

func localAddress(ctx context.Context) string {
	if address, ok := ctx.Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return address.IP.String()
	}
	return ""
}

// Count counts the requests to one pod.
type Count struct {
	Requests   int
	Violations map[podanswer.Violation]int
}

// Method is the gRPC method of pods, without TLS on the same port. The request is a StringValue with the duration of the call, or
// empty. The response is a StringValue with an [Answer] as JSON. A violation is an error UNAVAILABLE with the Answer as message.
const Method = "/lockstep.test.Pod/Ask"

// service has Method. It is not generated, since it has no messages of its own.
var service = grpc.ServiceDesc{
	ServiceName: "lockstep.test.Pod",
	HandlerType: (*asked)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Ask", Handler: func(server any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		request := &wrapperspb.StringValue{}
		if err := decode(request); err != nil {
			return nil, err
		}
		return server.(asked).ask(ctx, request.GetValue())
	}}},
}

type asked interface {
	ask(context.Context, string) (*wrapperspb.StringValue, error)
}

// ask is ServeHTTP for gRPC.
func (s *Server) ask(ctx context.Context, text string) (*wrapperspb.StringValue, error) {
	duration, err := durationOf(text)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	pod, answer := s.find(ctx, localAddress(ctx))
	answer = s.serve(ctx, pod, answer, duration)
	raw, err := json.Marshal(answer)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if answer.Violation != "" {
		return nil, status.Error(codes.Unavailable, string(raw))
	}
	return wrapperspb.String(string(raw)), nil
}
