// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

func TestLargeRequestIsRefused(t *testing.T) {
	client := dial(t, start(t, newDriver(), server.Options{Listen: "unix://" + socket(t)}).Addr())
	_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: &pb.WorkloadRef{Name: strings.Repeat("x", 2<<20)}})
	assert.Equal(t, codes.ResourceExhausted, status.Code(err), "a request of 2 MiB: %v, want RESOURCE_EXHAUSTED", err)
}

func TestCallsOfOneConnectionAreBounded(t *testing.T) {
	s := start(t, newDriver(), server.Options{Listen: "unix://" + socket(t)})
	health := healthpb.NewHealthClient(connection(t, s.Addr()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 100 {
		_, err := health.Watch(ctx, &healthpb.HealthCheckRequest{})
		require.NoError(t, err)
	}
	short, stop := context.WithTimeout(ctx, 300*time.Millisecond)
	defer stop()
	_, err := health.Watch(short, &healthpb.HealthCheckRequest{})
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err), "call 101 of a connection: %v, want it to wait", err)
}

// planning is a driver whose plans last until the test lets one end. Those of the workload "unread" wait for a cache that is never filled.
type planning struct {
	*driver

	begun chan string // namespaces
	end   chan struct{}
}

func (p planning) Plan(ctx context.Context, req *pb.PlanRequest) (*pb.PlanResponse, error) {
	if req.GetWorkload().GetName() == "unread" {
		p.begun <- ""
		<-ctx.Done()
	}
	if !access.Turn(ctx) {
		return nil, ctx.Err()
	}
	p.begun <- req.GetWorkload().GetNamespace()
	select {
	case <-p.end:
		return &pb.PlanResponse{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Few calls that compute much run at a time, and namespaces take turns. Others do not wait for them.
func TestPlansTakeTurns(t *testing.T) {
	d := planning{newDriver(), make(chan string, 10), make(chan struct{})}
	client := pb.NewWorkloadDriverClient(connection(t, start(t, d, server.Options{Listen: "unix://" + socket(t)}).Addr()))
	var calls sync.WaitGroup
	plan := func(namespace string) {
		calls.Go(func() {
			_, err := client.Plan(t.Context(), &pb.PlanRequest{Workload: &pb.WorkloadRef{Namespace: namespace, Name: "x"}})
			assert.NoError(t, err, namespace)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 5 { // they have no turn yet
		calls.Go(func() {
			_, _ = client.Plan(ctx, &pb.PlanRequest{Workload: &pb.WorkloadRef{Namespace: "loud", Name: "unread"}})
		})
		<-d.begun
	}
	for range 5 {
		plan("loud")
	}
	for range 2 {
		<-d.begun
	}
	plan("quiet")
	_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: vllm()})
	assert.NoError(t, err, "a call that costs little")
	select {
	case namespace := <-d.begun:
		t.Errorf("a third plan began, for %s", namespace)
	case <-time.After(200 * time.Millisecond):
	}
	var order []string
	for range 4 {
		d.end <- struct{}{}
		order = append(order, <-d.begun)
	}
	assert.True(t, slices.Contains(order[:2], "quiet"), "the next plans are of %v", order)
	close(d.end)
	cancel()
	calls.Wait()
}

// answering is a driver whose UpgradeBatch takes its turn, and then lasts until the test lets it end.
type answering struct {
	*driver

	turns chan bool
	end   chan struct{}
}

func (a answering) UpgradeBatch(ctx context.Context, _ *pb.UpgradeBatchRequest) (*pb.UpgradeBatchResponse, error) {
	a.turns <- access.Turn(ctx)
	<-a.end
	return &pb.UpgradeBatchResponse{}, nil
}

// Few large answers are made at a time, and those of a namespace leave some to others. A call whose intent is recorded is told soon that it gets
// no turn.
func TestLargeAnswersTakeTurns(t *testing.T) {
	const most = 9
	d := answering{newDriver(), make(chan bool), make(chan struct{})}
	client := pb.NewWorkloadDriverClient(connection(t, start(t, d, server.Options{Listen: "unix://" + socket(t)}).Addr()))
	var calls sync.WaitGroup
	call := func() bool {
		calls.Go(func() {
			_, err := client.UpgradeBatch(t.Context(), &pb.UpgradeBatchRequest{Workload: vllm()})
			assert.NoError(t, err)
		})
		return <-d.turns
	}
	for i := range most {
		assert.True(t, call(), "answer %d gets no turn", i)
	}
	assert.False(t, call(), "answer %d gets a turn", most)
	close(d.end)
	calls.Wait()
	assert.True(t, call(), "the calls that ended keep their turns")
	calls.Wait()
}

// Few readers of metrics are served at a time: each page is computed and held for one.
func TestReadersOfMetricsAreBounded(t *testing.T) {
	const most = 8
	begun, end := make(chan struct{}, most), make(chan struct{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "slow"}, func() float64 {
		begun <- struct{}{}
		<-end
		return 1
	}))
	s := start(t, newDriver(), server.Options{Listen: "unix://" + socket(t), MetricsAddress: "127.0.0.1:0", Registry: registry})
	var reading sync.WaitGroup
	for range most {
		reading.Go(func() {
			assert.Equal(t, http.StatusOK, get(t, "http://"+s.MetricsAddr()+"/metrics").code, "code")
		})
		<-begun
	}
	assert.Equal(t, http.StatusServiceUnavailable, get(t, "http://"+s.MetricsAddr()+"/metrics").code, "reader %d: code", most+1)
	close(end)
	reading.Wait()
}

// Handshakes that fail do not fill the log.
func TestFailedHandshakesAreSampled(t *testing.T) {
	var logs text.Buffer
	cert := tlstest.NewCA(t).Files(t, "server")
	s := start(t, newDriver(), server.Options{
		Listen: "unix://" + socket(t), TLSCert: cert.Cert, TLSKey: cert.Key, MetricsAddress: "0.0.0.0:0", Logger: slog.New(slog.NewTextHandler(&logs, nil)),
		ProtectMetrics: func(h http.Handler) (http.Handler, error) { return h, nil },
	})
	began, failed := time.Now(), 0
	for ; failed < 50; failed++ {
		conn, err := net.Dial("tcp", s.MetricsAddr())
		require.NoError(t, err)
		_, _ = conn.Write([]byte("no handshake"))
		_, _ = io.ReadAll(conn)
		_ = conn.Close()
	}
	lines := strings.Count(logs.String(), "handshake error")
	most := 1 + int(time.Since(began)/time.Second)
	assert.True(t, lines != 0 && lines <= most, "%d lines of %d handshakes, want 1 to %d", lines, failed, most)
}

// token returns a token whose subject is a user. It is not signed.
func token(user, audience string, expires time.Time) string {
	claims := fmt.Sprintf(`{"sub":%q,"aud":[%q],"exp":%d}`, user, audience, expires.Unix())
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// subjectOf returns the user of a token.
func subjectOf(token string) string {
	var claims struct{ Sub string }
	raw, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	_ = json.Unmarshal(raw, &claims)
	return claims.Sub
}

// counting allows everything, but to the user "stranger", and counts the reviews of tokens.
func counting(t *testing.T) (*review.Reviewer, *atomic.Int64) {
	t.Helper()
	var reviews atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			reviews.Add(1)
			var question authenticationv1.TokenReview
			_ = json.NewDecoder(r.Body).Decode(&question)
			name := subjectOf(question.Spec.Token)
			question.Status = authenticationv1.TokenReviewStatus{
				Authenticated: name != "forged", Audiences: question.Spec.Audiences, User: authenticationv1.UserInfo{Username: name},
			}
			_ = json.NewEncoder(w).Encode(question)
			return
		}
		var question authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&question)
		question.Status.Allowed = question.Spec.User != "stranger"
		_ = json.NewEncoder(w).Encode(question)
	}))
	t.Cleanup(api.Close)
	r, err := review.New(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	require.NoError(t, err)
	return r, &reviews
}

// A user who calls too often is refused, and delays no other.
func TestUsersAreLimited(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	reviewer, _ := counting(t)
	s := start(t, newDriver(), server.Options{
		Listen: "127.0.0.1:0", TLSCert: cert.Cert, TLSKey: cert.Key, Reviewer: reviewer, UserQPS: 1,
	})
	as := func(user string) *plugin.Client {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(token(user, review.Audience, time.Now().Add(time.Hour))), 0o600))
		return dial(t, s.Addr(), plugin.DialOptions{CA: ca.File, TokenFile: path}) // the first call
	}
	look := func(c *plugin.Client) error {
		_, err := c.CalculateBatchContext(t.Context(), &pb.CalculateBatchContextRequest{Workload: vllm()})
		return err
	}
	eager := as("eager")
	await.True(t, "the user is limited", func() bool {
		err := look(eager)
		return plugin.Reason(err) == pb.ErrorReason_ERROR_REASON_RATE_LIMITED && plugin.Retryable(err)
	})
	assert.NoError(t, look(as("calm")), "another user")
	await.True(t, "the user may call again", func() bool { return look(eager) == nil })
}

// A refused call is in the audit log, and one that is repeated hides no other.
func TestRefusedCallsAreAudited(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	reviewer, _ := counting(t)
	var logs text.Buffer
	s := start(t, newDriver(), server.Options{
		Listen: "127.0.0.1:0", TLSCert: cert.Cert, TLSKey: cert.Key, Reviewer: reviewer, Logger: slog.New(slog.NewTextHandler(&logs, nil)),
	})
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(token("stranger", review.Audience, time.Now().Add(time.Hour))), 0o600))
	client := dial(t, s.Addr(), plugin.DialOptions{CA: ca.File, TokenFile: path})
	const many = 50
	began := time.Now()
	for i := range many {
		namespace := "loud"
		if i == many/2 {
			namespace = "quiet"
		}
		_, err := client.Finalize(t.Context(), &pb.FinalizeRequest{Workload: &pb.WorkloadRef{Namespace: namespace, Name: "vllm"}})
		require.Equal(t, pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, plugin.Reason(err), "%v", err)
	}
	const line = "level=INFO msg=audit user=stranger method=" + pb.WorkloadDriver_Finalize_FullMethodName + " namespace=%s code=PermissionDenied error="
	assert.Equal(t, 1, strings.Count(logs.String(), fmt.Sprintf(line, "quiet")), "lines of another namespace in:\n%s", &logs)
	lines, most := strings.Count(logs.String(), fmt.Sprintf(line, "loud")), 2+int(time.Since(began)/time.Second)
	assert.True(t, lines != 0 && lines <= most, "%d lines of %d calls, want 1 to %d", lines, many, most)
}
