// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package dashboard

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-rollouts/lockstep/internal/host"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeDriver sends what a test puts into items; an error ends the stream.
type fakeDriver struct {
	host.Watcher

	items   chan any
	watches atomic.Int32
	// revisions is the answer of ListRevisions, or an error.
	revisions any
}

func (f *fakeDriver) WatchWorkloads(
	ctx context.Context, _ *pb.WatchWorkloadsRequest, _ ...grpc.CallOption,
) iter.Seq2[*pb.WatchWorkloadsResponse, error] {
	f.watches.Add(1)
	return func(yield func(*pb.WatchWorkloadsResponse, error) bool) {
		for {
			select {
			case <-ctx.Done():
				yield(nil, ctx.Err())
				return
			case item := <-f.items:
				if err, ended := item.(error); ended {
					yield(nil, err)
					return
				}
				if !yield(item.(*pb.WatchWorkloadsResponse), nil) {
					return
				}
			}
		}
	}
}

func (f *fakeDriver) ListRevisions(context.Context, *pb.ListRevisionsRequest, ...grpc.CallOption) (*pb.ListRevisionsResponse, error) {
	if err, failed := f.revisions.(error); failed {
		return nil, err
	}
	return &pb.ListRevisionsResponse{Revisions: f.revisions.([]*pb.Revision)}, nil
}

var synced = &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Synced{Synced: true}}

// vllm is a workload with a running release.
func vllm(state pb.State, message string) *pb.WatchWorkloadsResponse {
	return &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Context{Context: &pb.BatchContext{
		Workload: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}, ReleaseId: "r1", State: state, Message: message,
	}}}
}

// serve serves a dashboard until the test ends, and returns the URL of its page.
func serve(t *testing.T, f *fakeDriver) (page string, ended <-chan error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return serveOn(t, f, listener)
}

func serveOn(t *testing.T, f *fakeDriver, listener net.Listener) (page string, ended <-chan error) {
	t.Helper()
	f.items = make(chan any)
	ctx, stop := context.WithCancel(t.Context())
	d := New(f, "default", func(err error) error { return errors.New(status.Convert(err).Message()) }, Options{})
	done, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(done)
		result <- d.Serve(ctx, listener)
	}()
	t.Cleanup(func() {
		stop()
		<-done
		http.DefaultClient.CloseIdleConnections()
	})
	return d.URL(listener.Addr()), result
}

func request(t *testing.T, method, url string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	return r
}

// get returns the answer to a request, whose body is read.
func get(t *testing.T, r *http.Request) (code int, header http.Header, body string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience) // a stream would not end
	defer cancel()
	answer, err := http.DefaultClient.Do(r.WithContext(ctx))
	require.NoError(t, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, answer.Header, string(raw)
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	page, _ := serve(t, &fakeDriver{})
	base := page[:strings.LastIndex(strings.TrimSuffix(page, "/"), "/")]
	for name, tc := range map[string]struct {
		reason, method, url, host string
		want                      int
	}{
		"page":              {"the URL that was printed", http.MethodGet, page, "", 200},
		"forwarded":         {"ssh -L has another port", http.MethodGet, page, "localhost:8080", 200},
		"IPv6":              {"an address is no name", http.MethodGet, page, "[::1]:8080", 200},
		"rebound":           {"a foreign name that resolves to loopback", http.MethodGet, page, "evil.example.com", 403},
		"rebound with port": {"likewise", http.MethodGet, page + "events", "evil.example.com:80", 403},
		"like localhost":    {"a foreign name", http.MethodGet, page, "localhost.example.com", 403},
		"no secret":         {"another user of the machine", http.MethodGet, base + "/", "", 404},
		"events guessed":    {"another user of the machine", http.MethodGet, base + "/guessed/events", "", 404},
		"no such file":      {"the source is not served", http.MethodGet, page + "dashboard.go", "", 404},
		"POST":              {"nothing can be written", http.MethodPost, page, "", 405},
		"PUT of events":     {"nothing can be written", http.MethodPut, page + "events", "", 405},
		"DELETE":            {"nothing can be written", http.MethodDelete, page + "history/default/vllm", "", 405},
		"preflight":         {"no other origin is allowed", http.MethodOptions, page + "events", "", 405},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request(t, tc.method, tc.url)
			r.Host = tc.host
			r.Header.Set("Origin", "http://evil.example.com")
			code, header, body := get(t, r)
			assert.Equal(t, tc.want, code, "%s: code %d, want %d: %s", tc.reason, code, tc.want, body)
			for _, cors := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Methods"} {
				assert.Empty(t, header.Get(cors), cors)
			}
		})
	}
}

// Neither the page nor its policy allows scripts or styles within it, or anything from elsewhere.
func TestContentSecurityPolicy(t *testing.T) {
	t.Parallel()
	page, _ := serve(t, &fakeDriver{})
	elsewhere := regexp.MustCompile(`(https?:)?//[a-z]|\son[a-z]+=|style=|<style|<script[^>]*>[^<]|javascript:|@import|innerHTML|outerHTML|insertAdjacentHTML|eval\(`)
	for _, file := range []string{"", "app.js", "style.css", "icon.svg"} {
		code, header, body := get(t, request(t, http.MethodGet, page+file))
		policy := header.Get("Content-Security-Policy")
		assert.True(t, code == http.StatusOK && strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") && !strings.Contains(policy, "unsafe"),
			"%q: code %d, policy %q", file, code, policy)
		assert.True(t, header.Get("X-Content-Type-Options") == "nosniff" && header.Get("Referrer-Policy") == "no-referrer",
			"%q: headers %v", file, header)
		body = strings.ReplaceAll(body, "http://www.w3.org/2000/svg", "") // a name, not an address
		assert.Empty(t, elsewhere.FindString(body), "%q", file)
	}
}

// browser reads server-sent events.
type browser struct {
	t     *testing.T
	lines *bufio.Scanner
}

func open(t *testing.T, page string) *browser {
	t.Helper()
	return openWith(t, http.DefaultClient, page, await.Patience)
}

func openWith(t *testing.T, client *http.Client, page string, patience time.Duration) *browser {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	answer, err := client.Do(request(t, http.MethodGet, page+"events").WithContext(ctx))
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		_ = answer.Body.Close()
	})
	require.Equal(t, "text/event-stream", answer.Header.Get("Content-Type"), "content type")
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 10<<20)
	return &browser{t, lines}
}

// await reads until an event's data satisfies a condition. Each line must belong to an event.
func (b *browser) await(event string, condition func(data map[string]any) bool) map[string]any {
	b.t.Helper()
	name := ""
	for b.lines.Scan() {
		key, value, _ := strings.Cut(b.lines.Text(), ": ")
		switch key {
		case "event":
			name = value
		case "data":
			var data any
			require.NoError(b.t, json.Unmarshal([]byte(value), &data), "data of %s", name)
			fields, ok := data.(map[string]any)
			if !ok {
				fields = map[string]any{"key": data}
			}
			if name == event && condition(fields) {
				return fields
			}
		case "":
		default:
			b.t.Fatalf("line %q", b.lines.Text())
		}
	}
	b.t.Fatalf("the stream ended before the event: %v", b.lines.Err())
	return nil
}

func is(key string, want any) func(map[string]any) bool {
	return func(data map[string]any) bool { return data[key] == want }
}

func TestEvents(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	page, _ := serve(t, f)
	first := open(t, page)
	got := first.await("status", func(map[string]any) bool { return true })
	assert.True(t, got["synced"] == false && got["scope"] == "namespace default", "status %v before the driver answered", got)
	const hostile = "</script><img src=x onerror=alert(1)>\n\nevent: removed\ndata: \"default/vllm\"\n\n"
	f.items <- vllm(pb.State_STATE_UPGRADING, hostile)
	f.items <- synced
	got = first.await("workload", is("state", "upgrading"))
	assert.True(t, got["message"] == hostile && got["atLeast"] == true && got["live"] == true, "workload %v", got)
	first.await("status", is("synced", true))
	f.items <- vllm(pb.State_STATE_COMPLETED, "done")
	got = first.await("workload", is("state", "completed"))
	assert.True(t, got["atLeast"] == false && got["live"] == true, "workload %v after a release that was observed", got)
	second := open(t, page)
	second.await("workload", is("state", "completed"))
	f.items <- &pb.WatchWorkloadsResponse{Change: &pb.WatchWorkloadsResponse_Removed{Removed: &pb.WorkloadRef{Namespace: "default", Name: "vllm"}}}
	for _, b := range []*browser{first, second} {
		b.await("removed", is("key", "default/vllm"))
	}
	n := f.watches.Load()
	assert.Equal(t, int32(1), n, "%d streams of the driver for two browsers", n)
}

// A driver that refuses ends the dashboard, as it ends `lockstep watch`.
func TestRefusedByDriver(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	_, ended := serve(t, f)
	f.items <- status.Error(codes.PermissionDenied, "no")
	err := <-ended
	assert.Equal(t, codes.PermissionDenied, status.Code(err), "it ended with %v", err)
}

// A browser that reads nothing delays no other, and gets the newest state when it reads again, without all states in between.
func TestSlowBrowser(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{}
	page, _ := serve(t, f)
	slow, fast := open(t, page), open(t, page)
	const changes = 200
	message := strings.Repeat("x", 1<<18) // more than the kernel's buffers keep
	for i := range changes {
		f.items <- vllm(pb.State_STATE_UPGRADING, fmt.Sprint(i, message))
		fast.await("workload", is("message", fmt.Sprint(i, message)))
	}
	seen := 0
	slow.await("workload", func(data map[string]any) bool {
		seen++
		return data["message"] == fmt.Sprint(changes-1, message)
	})
	assert.LessOrEqual(t, seen, changes/2, "the slow browser was sent %d of %d states", seen, changes)
}

// pipes is a listener in memory, for a test with its own clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 80} }

// A stream stays open while nothing changes.
func TestIdleStream(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, listener := &fakeDriver{}, make(pipes)
		page, _ := serveOn(t, f, listener)
		client := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			listener <- there
			return here, nil
		}}}
		b := openWith(t, client, page, 2*time.Hour)
		go func() {
			<-time.After(time.Hour)
			f.items <- vllm(pb.State_STATE_READY, "")
		}()
		b.await("workload", is("state", "ready"))
	})
}

func TestHistory(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{revisions: []*pb.Revision{
		{Number: 3, Name: "cccc", Template: `{"image":"v3"}`},
		{
			Number: 2, Name: "bbbb", Current: true, ReleaseId: "<b>", Outcome: pb.State_STATE_ROLLED_BACK, Template: `{"image":"v2"}`,
			CreateTime: timestamppb.New(noon), EndTime: timestamppb.New(noon.Add(90 * time.Second)),
		},
		{Number: 1, Name: "aaaa", Stable: true, Template: `{"image":"v1"}`},
		{Name: "0000"},
	}}
	page, _ := serve(t, f)
	code, _, body := get(t, request(t, http.MethodGet, page+"history/default/vllm"))
	assert.Equal(t, http.StatusNotFound, code, "history of an unknown workload: code %d: %s", code, body)
	f.items <- vllm(pb.State_STATE_ROLLED_BACK, "")
	set := vllm(pb.State_STATE_ROLLED_BACK, "")
	set.GetContext().Workload = &pb.WorkloadRef{Namespace: "default", Name: "llm", Kind: "DisaggregatedSet"}
	f.items <- set
	f.items <- synced // those before are observed
	code, _, body = get(t, request(t, http.MethodGet, page+"history/default/disaggregatedset/llm"))
	assert.Equal(t, http.StatusOK, code, "history of a DisaggregatedSet: code %d: %s", code, body)
	var rows []revision
	code, header, body := get(t, request(t, http.MethodGet, page+"history/default/vllm"))
	err := json.Unmarshal([]byte(body), &rows)
	require.True(t, err == nil && header.Get("Content-Type") == "application/json", "code %d, %v: %s", code, err, body)
	want := []revision{
		{strings.Split("|3|cccc|-|-|-|-|-", "|"), "", "1", "--- revision 1\n+++ revision 3\n@@ -1,2 +1,2 @@\n-image: v1\n+image: v3\n \n"},
		{strings.Split(">|2|bbbb|2026-01-02T12:00:00Z|-|-|<b>|rolled back", "|"), "90s", "1", "--- revision 1\n+++ revision 2\n@@ -1,2 +1,2 @@\n-image: v1\n+image: v2\n \n"},
		{strings.Split("*|1|aaaa|-|-|-|-|-", "|"), "", "0000", "the template of revision 0000 can't be read"},
		{Cells: strings.Split("|-|0000|-|-|-|-|waits for a release", "|")},
	}
	assert.Empty(t, cmp.Diff(want, rows), "rows (-want +got)")
}

func TestHistoryFails(t *testing.T) {
	t.Parallel()
	f := &fakeDriver{revisions: status.Error(codes.Unavailable, "connection refused")}
	page, _ := serve(t, f)
	f.items <- vllm(pb.State_STATE_READY, "")
	f.items <- synced
	code, _, body := get(t, request(t, http.MethodGet, page+"history/default/vllm"))
	assert.True(t, code == http.StatusBadGateway && strings.TrimSpace(body) == "connection refused", "code %d: %s", code, body)
}
