// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package eventwatch_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/eventwatch"
)

// api is an API server that has events only: what it lists, and what each watch brings until it ends. A number is the
// status of an answer that is a refusal.
type api struct {
	mu      sync.Mutex
	lists   []any // []string or int
	watches []any // []string or int
	asked   []string
	drained chan struct{}
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	watch := r.URL.Query().Get("watch") != ""
	a.mu.Lock()
	from := &a.lists
	if watch {
		from = &a.watches
	}
	a.asked = append(a.asked, fmt.Sprintf("watch=%t after %q: %s", watch, r.URL.Query().Get("resourceVersion"), r.URL.Query().Get("fieldSelector")))
	var next any
	if len(*from) > 0 {
		next, *from = (*from)[0], (*from)[1:]
	}
	a.mu.Unlock()
	switch answer := next.(type) {
	case nil:
		close(a.drained)
		<-r.Context().Done()
	case int:
		w.WriteHeader(answer)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Code: int32(answer), Reason: reasonOf(answer)})
	case []string:
		if !watch {
			list := corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
			for _, name := range answer {
				list.Items = append(list.Items, event(name, "7"))
			}
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		for i, name := range answer {
			_ = json.NewEncoder(w).Encode(map[string]any{"type": "ADDED", "object": event(name, fmt.Sprint(8+i))})
		}
	}
}

func reasonOf(code int) metav1.StatusReason {
	switch code {
	case http.StatusForbidden:
		return metav1.StatusReasonForbidden
	case http.StatusGone:
		return metav1.StatusReasonExpired
	default:
		return metav1.StatusReasonInternalError
	}
}

func event(name, version string) corev1.Event {
	return corev1.Event{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Event"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, ResourceVersion: version},
	}
}

// follow returns what the receiver was told, once all of the answers were given.
func follow(t *testing.T, a *api) (told []string, err error) {
	t.Helper()
	a.drained = make(chan struct{})
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-a.drained:
		case <-time.After(30 * time.Second):
			t.Error("not all answers were asked for")
		}
		cancel()
	}()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	err = eventwatch.Follow(ctx, client.CoreV1(), "ns", eventwatch.Receiver{
		Event: func(e *corev1.Event, _ bool) { told = append(told, e.Name) },
		Lost:  func(error) { told = append(told, "lost") },
		Found: func() { told = append(told, "found") },
	})
	return told, err
}

func TestFollow(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		reason         string
		lists, watches []any
		want           []string
	}{
		"Usual": {
			"a list, and then what a watch brings, and the next one after it",
			[]any{[]string{"a", "b"}}, []any{[]string{"c"}},
			[]string{"a", "b", "found", "c"},
		},
		"Away": {
			"an unavailable API server is reported as lost, and then as found",
			[]any{500, []string{"a"}}, nil, []string{"lost", "a"},
		},
		"Expired": {
			"a version that is too old is no news, only another list",
			[]any{[]string{"a"}, []string{"a", "b"}}, []any{410}, []string{"a", "a", "b"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &api{lists: tc.lists, watches: tc.watches}
			got, err := follow(t, a)
			if err != nil {
				t.Errorf("%s: %v", tc.reason, err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s: -want, +got:\n%s", tc.reason, diff)
			}
			for _, asked := range a.asked {
				if want := "involvedObject.kind=LeaderWorkerSet"; len(asked) < len(want) || asked[len(asked)-len(want):] != want {
					t.Errorf("asked for more than events of LeaderWorkerSets: %s", asked)
				}
			}
		})
	}
}

func TestFollowIsRefused(t *testing.T) {
	t.Parallel()
	a := &api{lists: []any{403}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	server := httptest.NewServer(a)
	defer server.Close()
	client := kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL})
	none := eventwatch.Receiver{Event: func(*corev1.Event, bool) {}, Lost: func(error) {}, Found: func() {}}
	if err := eventwatch.Follow(ctx, client.CoreV1(), "ns", none); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that it is forbidden", err)
	}
}

func TestAt(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, time.January, 2, 12, 0, 0, 0, time.UTC)
	old, now := metav1.NewTime(noon.Add(-time.Hour)), metav1.NewTime(noon)
	for name, e := range map[string]corev1.Event{
		"created": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: now}},
		"counted": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: old}, FirstTimestamp: old, LastTimestamp: now},
		"new API": {ObjectMeta: metav1.ObjectMeta{CreationTimestamp: old}, EventTime: metav1.NewMicroTime(noon)},
		"series": {
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: old}, EventTime: metav1.NewMicroTime(old.Time),
			Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(noon)},
		},
	} {
		if got := eventwatch.At(&e); !got.Equal(noon) {
			t.Errorf("%s: %v", name, got)
		}
	}
}
