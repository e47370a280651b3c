// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package podserver

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/fakes"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// Every address of 127.0.0.0/8 is local on Linux, like the pod range in the namespace.
const (
	leaderAddress = "127.9.0.1"
	workerAddress = "127.9.0.2"
	otherAddress  = "127.9.0.3"
	brokenAddress = "127.9.0.4"
	unusedAddress = "127.9.0.9"
)

func member(name, address, index string, ready bool) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{
				lws.SetNameLabelKey: "vllm", lws.GroupIndexLabelKey: "0", lws.WorkerIndexLabelKey: index, lws.RevisionKey: "r1",
			},
			Annotations: map[string]string{lws.SizeAnnotationKey: "2"},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: address,
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}
}

// serve starts a server for pods and returns its port.
func serve(t *testing.T, pods ...*corev1.Pod) (*Server, kubernetes.Interface, string) {
	t.Helper()
	client := fake.NewClientset()
	fakes.CopyWatched(&client.Fake)
	for _, pod := range pods {
		if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	_ = listener.Close()
	s, err := start(t.Context(), client, "0.0.0.0:"+port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s, client, port
}

func ask(t *testing.T, address, port, path string) (int, podanswer.Answer) {
	t.Helper()
	response, err := http.Post("http://"+address+":"+port+path, "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	var answer podanswer.Answer
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	answer.Detail = ""
	return response.StatusCode, answer
}

func TestAnswers(t *testing.T) {
	other := member("plain", otherAddress, "", true)
	other.Labels, other.Annotations = nil, nil
	lonely := member("lonely-0", brokenAddress, "0", true)
	lonely.Labels[lws.SetNameLabelKey] = "lonely"
	s, _, port := serve(t, member("vllm-0", leaderAddress, "0", true), member("vllm-0-1", workerAddress, "1", true), other, lonely)
	leader := podanswer.Answer{Namespace: "default", Pod: "vllm-0", Workload: "vllm", Revision: "r1", Role: podanswer.RoleLeader, Group: "0"}
	worker := leader
	worker.Pod, worker.Role, worker.Violation = "vllm-0-1", podanswer.RoleWorker, podanswer.Worker
	half := leader
	half.Pod, half.Workload, half.Violation = "lonely-0", "lonely", podanswer.GroupUnready
	for _, test := range []struct {
		address string
		code    int
		want    podanswer.Answer
		reason  string
	}{
		{leaderAddress, 200, leader, "a ready leader of a whole group serves"},
		{workerAddress, 503, worker, "workers never serve"},
		{brokenAddress, 503, half, "a leader without its workers can't serve"},
		{otherAddress, 200, podanswer.Answer{Namespace: "default", Pod: "plain"}, "a pod of no group only has to be ready"},
		{unusedAddress, 503, podanswer.Answer{Violation: podanswer.Gone}, "no pod has this address"},
	} {
		code, got := ask(t, test.address, port, "/v1/completions")
		if diff := cmp.Diff(test.want, got); diff != "" || code != test.code {
			t.Errorf("%s: %d, want %d, %s:\n%s", test.address, code, test.code, test.reason, diff)
		}
	}
	want := map[string]Count{
		"default/vllm-0":   {1, map[podanswer.Violation]int{}},
		"default/vllm-0-1": {1, map[podanswer.Violation]int{podanswer.Worker: 1}},
		"default/lonely-0": {1, map[podanswer.Violation]int{podanswer.GroupUnready: 1}},
		"default/plain":    {1, map[podanswer.Violation]int{}},
		unusedAddress:      {1, map[podanswer.Violation]int{podanswer.Gone: 1}},
	}
	if diff := cmp.Diff(want, s.Counts()); diff != "" {
		t.Error(diff)
	}
}

// gRPC clients get the same answer, or an error with it.
func TestGRPC(t *testing.T) {
	s, _, port := serve(t, member("vllm-0", leaderAddress, "0", true), member("vllm-0-1", workerAddress, "1", true))
	for _, test := range []struct {
		address, asked string
		code           codes.Code
		pod            string
		violation      podanswer.Violation
	}{
		{leaderAddress, "", codes.OK, "vllm-0", ""},
		{leaderAddress, "10ms", codes.OK, "vllm-0", ""},
		{leaderAddress, "soon", codes.InvalidArgument, "", ""},
		{workerAddress, "", codes.Unavailable, "vllm-0-1", podanswer.Worker},
		{unusedAddress, "", codes.Unavailable, "", podanswer.Gone},
	} {
		conn, err := grpc.NewClient("passthrough:///"+test.address+":"+port, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		reply := &wrapperspb.StringValue{}
		err = conn.Invoke(t.Context(), Method, wrapperspb.String(test.asked), reply)
		text := reply.GetValue()
		if err != nil {
			text = status.Convert(err).Message()
		}
		var answer podanswer.Answer
		bad := json.Unmarshal([]byte(text), &answer) != nil && test.code != codes.InvalidArgument
		if bad || status.Code(err) != test.code || answer.Pod != test.pod || answer.Violation != test.violation {
			t.Errorf("%s, %q: %v, %s", test.address, test.asked, err, text)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := s.Counts()["default/vllm-0"].Requests; got != 2 {
		t.Errorf("%d calls are counted, want 2", got)
	}
}

func TestLeaderBecomesReady(t *testing.T) {
	worker := member("vllm-0-1", workerAddress, "1", true)
	_, client, port := serve(t, member("vllm-0", leaderAddress, "0", false), worker)
	if code, got := ask(t, leaderAddress, port, "/"); code != 503 || got.Violation != podanswer.Unready {
		t.Errorf("an unready leader answers %d, %+v", code, got)
	}
	// The cache may lag behind the API server.
	if _, err := client.CoreV1().Pods("default").Update(t.Context(), member("vllm-0", leaderAddress, "0", true), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if code, got := ask(t, leaderAddress, port, "/"); code != 200 || got.Violation != "" {
		t.Errorf("a leader that has become ready answers %d, %+v", code, got)
	}
}

// A long request is cut when its pod is deleted or its container ends.
func TestLongRequest(t *testing.T) {
	for _, test := range []struct {
		name  string
		spoil func(*testing.T, kubernetes.Interface)
	}{
		{"deleted", func(t *testing.T, client kubernetes.Interface) {
			if err := client.CoreV1().Pods("default").Delete(t.Context(), "vllm-0", metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}},
		{"crashed", func(t *testing.T, client kubernetes.Interface) {
			pod := member("vllm-0", leaderAddress, "0", false)
			pod.Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			if _, err := client.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
				t.Error(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, client, port := serve(t, member("vllm-0", leaderAddress, "0", true), member("vllm-0-1", workerAddress, "1", true))
			begin := time.Now()
			if code, got := ask(t, leaderAddress, port, "/?duration=50ms"); code != 200 || time.Since(begin) < 50*time.Millisecond {
				t.Errorf("after %s: %d, %+v", time.Since(begin), code, got)
			}
			go func() {
				awaitRunning(t, port, 1)
				test.spoil(t, client)
			}()
			if code, got := ask(t, leaderAddress, port, "/?duration=1m"); code != 503 || got.Violation != podanswer.Cut {
				t.Errorf("after %s: %d, %+v", time.Since(begin), code, got)
			}
		})
	}
}

// The gauge that drains use.
func TestMetrics(t *testing.T) {
	_, _, port := serve(t, member("vllm-0", leaderAddress, "0", true), member("vllm-0-1", workerAddress, "1", true))
	done := make(chan struct{})
	go func() {
		defer close(done)
		ask(t, leaderAddress, port, "/?duration=3s")
	}()
	for want := 1; want >= 0; want-- {
		awaitRunning(t, port, want)
	}
	<-done
}

// awaitRunning waits until the leader's gauge has a value.
func awaitRunning(t *testing.T, port string, want int) {
	t.Helper()
	line := fmt.Sprintf("vllm:num_requests_running{model_name=\"model\"} %d\n", want)
	for deadline := time.Now().Add(await.Patience); ; time.Sleep(time.Millisecond) {
		response, err := http.Get("http://" + leaderAddress + ":" + port + "/metrics")
		if err != nil {
			t.Error(err)
			return
		}
		body, _ := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if strings.Contains(string(body), line) {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("no %q in %q", line, body)
			return
		}
	}
}

func TestBadDuration(t *testing.T) {
	_, _, port := serve(t, member("vllm-0", leaderAddress, "0", true), member("vllm-0-1", workerAddress, "1", true))
	response, err := http.Get("http://" + leaderAddress + ":" + port + "/?duration=long")
	if err != nil {
		t.Fatal(err)
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusBadRequest {
		t.Error(response.Status)
	}
}
