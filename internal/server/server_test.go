// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"k8s.io/client-go/rest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// driver is a server.Driver over the fake, which panics on request.
type driver struct {
	*plugintest.FakeDriver

	synced, stale atomic.Bool
	panics        atomic.Bool
}

func newDriver() *driver {
	d := &driver{FakeDriver: plugintest.NewFakeDriver()}
	d.SetWorkload("default", "vllm", 4, "rev-1")
	d.synced.Store(true)
	return d
}

func (d *driver) Ready() error {
	if !d.synced.Load() {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_NOT_SYNCED, "caches are not filled")
	}
	return nil
}

func (d *driver) Drain() {}

func (d *driver) Fresh() error {
	if d.stale.Load() {
		return errors.New("the cache of pods is not confirmed")
	}
	return nil
}

func (d *driver) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

func (d *driver) Adopt(ctx context.Context, req *pb.AdoptRequest) (*pb.AdoptResponse, error) {
	if d.panics.Load() {
		panic("secret of a panic")
	}
	return d.FakeDriver.Adopt(ctx, req)
}

// running is a server in Run.
type running struct {
	*server.Server

	// stop ends Run and returns its error.
	stop func() error
}

// start runs a server until stop or the end of the test.
func start(t *testing.T, d server.Driver, o server.Options) running {
	t.Helper()
	s, err := server.New(t.Context(), d, o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	t.Cleanup(func() { _ = stop() })
	return running{Server: s, stop: stop}
}

// socket returns a path that is short enough for a socket.
func socket(t *testing.T) string {
	t.Helper()
	return filepath.Join(plugintest.ShortDir(t), "l.sock")
}

func dial(t *testing.T, address string, credentials ...plugin.DialOptions) *plugin.Client {
	t.Helper()
	client, err := plugin.Dial(t.Context(), address, append(credentials, plugin.DialOptions{})[0])
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// connection returns a gRPC connection, for services that plugin.Client does not have.
func connection(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func vllm() *pb.WorkloadRef { return &pb.WorkloadRef{Namespace: "default", Name: "vllm"} }

func TestServesOn(t *testing.T) {
	for name, address := range map[string]string{
		"unix socket": "unix://" + socket(t), "loopback v4": "127.0.0.1:0", "localhost": "localhost:0",
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, newDriver(), server.Options{Listen: address, AlwaysAllow: true})
			client := dial(t, s.Addr())
			_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: vllm()})
			assert.NoError(t, err, "Adopt")
			err = s.stop()
			assert.NoError(t, err, "Run() = %v after ctx ended, want nil", err)
		})
	}
}

func TestNewErrors(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("precious"), 0o600))
	tests := []struct {
		name    string
		reason  string
		options server.Options
		want    error
	}{
		{"all interfaces", "any client could release", server.Options{Listen: ":0", AlwaysAllow: true}, server.ErrNeedsTLS},
		{"wildcard", "any client could release", server.Options{Listen: "0.0.0.0:0", AlwaysAllow: true}, server.ErrNeedsTLS},
		{"other host", "it is not loopback", server.Options{Listen: "192.0.2.1:0", AlwaysAllow: true}, server.ErrNeedsTLS},
		{
			"no client CA", "TLS alone does not authenticate the client",
			server.Options{Listen: ":0", AlwaysAllow: true, TLSCert: cert.Cert, TLSKey: cert.Key}, server.ErrNeedsTLS,
		},
		{
			"half of TLS on loopback", "a forgotten flag must not mean plaintext",
			server.Options{Listen: "127.0.0.1:0", AlwaysAllow: true, TLSCert: cert.Cert}, server.ErrNeedsTLS,
		},
		{"no reviewer on loopback", "every user of the machine could release", server.Options{Listen: "127.0.0.1:0"}, server.ErrNeedsReviewer},
		{"no TLS", "tokens would travel in plaintext", server.Options{Listen: "127.0.0.1:0", Reviewer: reviewer(t)}, server.ErrNeedsTLS},
		{
			"missing files", "they are an error of New, not of the first connection",
			server.Options{Listen: ":0", AlwaysAllow: true, TLSCert: "no", TLSKey: "no", ClientCA: "no"}, fs.ErrNotExist,
		},
		{"no address", "nothing to listen on", server.Options{}, nil},
		{
			"client CA for a unix socket", "it would not be asked for a certificate",
			server.Options{Listen: "unix://" + socket(t), Reviewer: reviewer(t), TLSCert: cert.Cert, TLSKey: cert.Key, ClientCA: ca.File}, nil,
		},
		{"not a socket", "another file must not be replaced", server.Options{Listen: "unix://" + file}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := server.New(t.Context(), newDriver(), tt.options)
			require.Error(t, err, "%s: it listens", tt.reason)
			assert.False(t, tt.want != nil && !errors.Is(err, tt.want), "%s: error is %v, want %v", tt.reason, err, tt.want)
		})
	}
	text, err := os.ReadFile(file)
	assert.True(t, err == nil && string(text) == "precious", "the file is now %q, %v", text, err)
}

func TestMutualTLS(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert, client, stranger := ca.Files(t, "server"), ca.Files(t, "client"), tlstest.NewCA(t).Files(t, "stranger")
	s := start(t, newDriver(), server.Options{Listen: ":0", AlwaysAllow: true, TLSCert: cert.Cert, TLSKey: cert.Key, ClientCA: ca.File})
	_, port, err := net.SplitHostPort(s.Addr())
	require.NoError(t, err)
	address := "127.0.0.1:" + port
	dial(t, address, plugin.DialOptions{Cert: client.Cert, Key: client.Key, CA: ca.File})

	for name, opts := range map[string]plugin.DialOptions{
		"plaintext":           {},
		"foreign certificate": {Cert: stranger.Cert, Key: stranger.Key, CA: ca.File},
		"no certificate":      {CA: ca.File},
	} {
		if c, err := plugin.Dial(t.Context(), address, opts); err == nil {
			_ = c.Close()
			t.Errorf("%s: connected", name)
		}
	}

	renewed := tlstest.NewCA(t)
	fresh := renewed.Files(t, "server")
	for from, to := range map[string]string{fresh.Cert: cert.Cert, fresh.Key: cert.Key, renewed.File: ca.File} {
		require.NoError(t, os.Rename(from, to))
	}
	client = renewed.Files(t, "client")
	dial(t, address, plugin.DialOptions{Cert: client.Cert, Key: client.Key, CA: ca.File})
}

func TestSocket(t *testing.T) {
	path := filepath.Join(filepath.Dir(socket(t)), "sub", "l.sock")
	s := start(t, newDriver(), server.Options{Listen: "unix://" + path})
	info, err := os.Stat(path)
	require.NoError(t, err)
	got := info.Mode().Perm()
	assert.True(t, got == 0o600, "socket has mode %v, want 0600", got)
	_, err = server.New(t.Context(), newDriver(), server.Options{Listen: "unix://" + path})
	assert.ErrorIs(t, err, server.ErrInUse, "a second server: %v, want ErrInUse", err)
	dial(t, s.Addr())
	assert.NoError(t, s.stop())
	entries, err := os.ReadDir(filepath.Dir(path))
	assert.True(t, err == nil && len(entries) == 0, "left behind: %v, %v", entries, err)
}

// The certificate is that of the metrics: the socket still admits one user, by its mode, and commands connect to it without TLS.
func TestSocketBesideCertificate(t *testing.T) {
	ca := tlstest.NewCA(t)
	cert := ca.Files(t, "server")
	s := start(t, newDriver(), server.Options{
		Listen: "unix://" + socket(t), Reviewer: reviewer(t), TLSCert: cert.Cert, TLSKey: cert.Key,
		MetricsAddress: ":0", ProtectMetrics: func(h http.Handler) (http.Handler, error) { return h, nil },
	})
	dial(t, s.Addr())
}

// leaveDead creates a socket without a server.
func leaveDead(t *testing.T, path string) {
	t.Helper()
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
	require.NoError(t, err)
	dead.SetUnlinkOnClose(false)
	require.NoError(t, dead.Close())
}

func TestOneOfConcurrentServersGetsSocket(t *testing.T) {
	for _, stale := range []bool{false, true} {
		t.Run(fmt.Sprintf("stale=%t", stale), func(t *testing.T) {
			for range 20 {
				path := socket(t)
				if stale {
					leaveDead(t, path)
				}
				raceFor(t, path)
			}
		})
	}
}

// raceFor starts several servers at once for one socket.
func raceFor(t *testing.T, path string) {
	t.Helper()
	const servers = 8
	var won atomic.Int32
	var racing sync.WaitGroup
	begin := make(chan struct{})
	for range servers {
		racing.Go(func() {
			<-begin
			s, err := server.New(t.Context(), newDriver(), server.Options{Listen: "unix://" + path})
			if err == nil {
				won.Add(1)
				ctx, cancel := context.WithCancel(t.Context())
				t.Cleanup(func() { cancel(); _ = s.Run(ctx) })
			} else if !errors.Is(err, server.ErrInUse) {
				t.Errorf("New() = %v, want ErrInUse", err)
			}
		})
	}
	close(begin)
	racing.Wait()
	assert.Equal(t, int32(1), won.Load(), "%d servers have the socket, want 1", won.Load())
}

func TestRefusesDirectoryOfOtherUser(t *testing.T) {
	base := filepath.Dir(socket(t))
	public, theirs := filepath.Join(base, "public"), filepath.Join(base, "theirs")
	require.NoError(t, errors.Join(os.Mkdir(public, 0o700), os.Chmod(public, 0o777), os.Symlink(base, theirs)))
	tests := map[string]string{"any user could replace the socket": public}
	if os.Getuid() == 0 {
		require.NoError(t, os.Lchown(theirs, 12345, 12345))
		tests["the owner of the link could change it"] = theirs
	}
	for reason, dir := range tests {
		s, err := server.New(t.Context(), newDriver(), server.Options{Listen: "unix://" + filepath.Join(dir, "l.sock")})
		if err == nil {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			_ = s.Run(ctx)
			t.Errorf("%s: it listens in %s", reason, dir)
		}
	}
}

func TestHealthFollowsDriver(t *testing.T) {
	d := newDriver()
	d.synced.Store(false)
	s := start(t, d, server.Options{Listen: "unix://" + socket(t), HealthAddress: "127.0.0.1:0"})
	client := healthpb.NewHealthClient(connection(t, s.Addr()))
	state := func(service string) healthpb.HealthCheckResponse_ServingStatus {
		resp, err := client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		require.NoError(t, err)
		return resp.GetStatus()
	}
	services := []string{"", "lockstep.v1alpha1.WorkloadDriver", "lockstep.v1alpha1.TrafficRouter"}
	for _, service := range services {
		got := state(service)
		assert.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, got, "health of %q is %v before the sync", service, got)
	}
	if got := get(t, "http://"+s.HealthAddr()+"/readyz"); got.code != http.StatusServiceUnavailable || got.body != "caches are not filled\n" {
		t.Errorf("/readyz answers %d %q before the sync", got.code, got.body)
	}
	code := get(t, "http://"+s.HealthAddr()+"/healthz").code
	assert.Equal(t, http.StatusOK, code, "/healthz answers %d before the sync", code)
	d.synced.Store(true)
	for _, service := range services {
		await.True(t, "health turns SERVING", func() bool { return state(service) == healthpb.HealthCheckResponse_SERVING })
	}
	code = get(t, "http://"+s.HealthAddr()+"/readyz").code
	assert.Equal(t, http.StatusOK, code, "/readyz answers %d after the sync", code)
	d.stale.Store(true)
	if got := get(t, "http://"+s.HealthAddr()+"/readyz"); got.code != http.StatusServiceUnavailable || got.body != "the cache of pods is not confirmed\n" {
		t.Errorf("/readyz answers %d %q with a stale cache", got.code, got.body)
	}
	code = get(t, "http://"+s.HealthAddr()+"/readyz?exclude=caches").code
	assert.Equal(t, http.StatusOK, code, "/readyz?exclude=caches answers %d with a stale cache", code)
	d.synced.Store(false)
	await.True(t, "health turns back", func() bool { return state("") == healthpb.HealthCheckResponse_NOT_SERVING })
}

// answer is a response of the HTTP endpoint.
type answer struct {
	code int
	body string
}

// get sends a request to an HTTP endpoint, with any certificate.
func get(t *testing.T, url string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, string(body)}
}

func TestMetrics(t *testing.T) {
	s := start(t, newDriver(), server.Options{Listen: "unix://" + socket(t), MetricsAddress: "127.0.0.1:0"})
	client := dial(t, s.Addr())
	_, _ = client.Adopt(t.Context(), &pb.AdoptRequest{})
	body := get(t, "http://"+s.MetricsAddr()+"/metrics").body
	for _, want := range []string{
		`grpc_server_handled_total{grpc_code="InvalidArgument",grpc_method="Adopt",grpc_service="lockstep.v1alpha1.WorkloadDriver",grpc_type="unary"} 1`,
		`grpc_server_started_total{grpc_method="Adopt",grpc_service="lockstep.v1alpha1.WorkloadDriver",grpc_type="unary"} 1`,
	} {
		assert.Contains(t, body, want, "/metrics lacks %s", want)
	}
}

// Beyond loopback, metrics need TLS and the wrapping handler; probes are not served beside them.
func TestMetricsBeyondLoopback(t *testing.T) {
	o := server.Options{Listen: "unix://" + socket(t), MetricsAddress: "0.0.0.0:0"}
	_, err := server.New(t.Context(), newDriver(), o)
	require.ErrorIs(t, err, server.ErrUnprotectedMetrics, "without authentication")
	o.ProtectMetrics = func(inner http.Handler) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("token") != "right" {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(w, r)
		}), nil
	}
	_, err = server.New(t.Context(), newDriver(), o)
	require.ErrorIs(t, err, server.ErrNeedsTLS, "without a certificate")
	cert := tlstest.NewCA(t).Files(t, "server")
	o.Listen, o.TLSCert, o.TLSKey = "unix://"+socket(t), cert.Cert, cert.Key
	s := start(t, newDriver(), o)
	_, port, _ := net.SplitHostPort(s.MetricsAddr())
	for url, want := range map[string]int{
		"http://127.0.0.1:" + port + "/metrics":              http.StatusBadRequest,
		"https://127.0.0.1:" + port + "/metrics":             http.StatusUnauthorized,
		"https://127.0.0.1:" + port + "/metrics?token=right": http.StatusOK,
		"https://127.0.0.1:" + port + "/readyz?token=right":  http.StatusNotFound,
	} {
		assert.Equal(t, want, get(t, url).code, "%s: status", url)
	}
}

func TestReflectionListsBothServices(t *testing.T) {
	for name, o := range map[string]server.Options{
		"unix socket": {Listen: "unix://" + socket(t)}, "TCP with --reflection": {Listen: "127.0.0.1:0", AlwaysAllow: true, Reflection: true},
	} {
		t.Run(name, func(t *testing.T) {
			listed, err := services(t, start(t, newDriver(), o).Addr())
			require.NoError(t, err)
			for _, want := range []string{"lockstep.v1alpha1.WorkloadDriver", "lockstep.v1alpha1.TrafficRouter", "grpc.health.v1.Health"} {
				assert.True(t, listed[want], "reflection lists %v, not %s", listed, want)
			}
		})
	}
}

func TestNoReflectionOnTCP(t *testing.T) {
	s := start(t, newDriver(), server.Options{Listen: "127.0.0.1:0", AlwaysAllow: true})
	listed, err := services(t, s.Addr())
	assert.Equal(t, codes.Unimplemented, status.Code(err), "reflection lists %v, error %v; want UNIMPLEMENTED", listed, err)
}

// services returns the services that reflection lists.
func services(t *testing.T, address string) (map[string]bool, error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := reflectionpb.NewServerReflectionClient(connection(t, address)).ServerReflectionInfo(ctx)
	if err != nil {
		return nil, err
	}
	err = stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}})
	if err != nil && !errors.Is(err, io.EOF) { // Recv has the cause
		return nil, err
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	listed := make(map[string]bool)
	for _, service := range resp.GetListServicesResponse().GetService() {
		listed[service.GetName()] = true
	}
	return listed, nil
}

func TestOpenWatchDoesNotDelayShutdown(t *testing.T) {
	s := start(t, newDriver(), server.Options{Listen: "unix://" + socket(t)})
	client := dial(t, s.Addr())
	messages := 0
	for _, err := range client.WatchBatchContext(t.Context(), &pb.WatchBatchContextRequest{Workload: vllm()}) {
		if err != nil {
			// The stream would end with the connection, too: at the end of the grace for calls, without these words.
			assert.True(t, status.Code(err) == codes.Unavailable && strings.Contains(err.Error(), "the server is shutting down; reconnect"),
				"the stream ended with %v, want the server's UNAVAILABLE so that the host reconnects", err)
			break
		}
		messages++
		go func() { _ = s.stop() }()
	}
	assert.Equal(t, 1, messages, "messages, want 1 before the end")
	assert.NoError(t, s.stop())
}

func TestPanicIsInternalError(t *testing.T) {
	var logs text.Buffer
	d := newDriver()
	s := start(t, d, server.Options{Listen: "unix://" + socket(t), Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	client := dial(t, s.Addr())
	d.panics.Store(true)
	_, err := client.Adopt(t.Context(), &pb.AdoptRequest{Workload: vllm()})
	assert.Equal(t, pb.ErrorReason_ERROR_REASON_INTERNAL, plugin.Reason(err), "a panic is %v, want INTERNAL", err)
	assert.False(t, err != nil && strings.Contains(err.Error(), "secret"), "error %v has the panic's message", err)
	assert.Contains(t, logs.String(), "secret of a panic", "the log lacks the panic's message")
	d.panics.Store(false)
	_, err = client.Adopt(t.Context(), &pb.AdoptRequest{Workload: vllm()})
	assert.NoError(t, err, "after the panic")
}

func TestRequestLog(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		level  slog.Level
		call   *pb.AdoptRequest
		want   string
	}{
		{"success", "it is routine", slog.LevelDebug, &pb.AdoptRequest{Workload: vllm()}, "level=DEBUG"},
		{"failure", "it may need action", slog.LevelWarn, &pb.AdoptRequest{}, "level=WARN"},
		{"quiet success", "info is not for each request", slog.LevelInfo, &pb.AdoptRequest{Workload: vllm()}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var logs text.Buffer
			logger := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: tt.level}))
			s := start(t, newDriver(), server.Options{Listen: "unix://" + socket(t), Logger: logger})
			_, _ = dial(t, s.Addr()).Adopt(t.Context(), tt.call)
			require.NoError(t, s.stop())
			var line string
			for l := range strings.Lines(logs.String()) {
				if strings.Contains(l, "grpc.method=Adopt") {
					line = l
				}
			}
			assert.True(t, strings.Contains(line, tt.want) && (tt.want == "") == (line == ""), "%s: logged %q, want %q", tt.reason, line, tt.want)
			assert.NotContains(t, line, "vllm", "the log line %q has the request's content", line)
		})
	}
}

// reviewer returns one whose API server is never asked.
func reviewer(t *testing.T) *review.Reviewer {
	t.Helper()
	r, err := review.New(&rest.Config{Host: "https://127.0.0.1:1"})
	require.NoError(t, err)
	return r
}
