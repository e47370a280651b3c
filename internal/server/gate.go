// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

// call is what the tap has found out about a call.
type call struct {
	peer net.Addr
	// user is the caller, nil if unknown. If token is not empty, it is to be reviewed, and this is who its bearer was before.
	user  user.Info
	token string
	// refused is why the call must end at once.
	refused error
	// read frees what the call held until its request was read, or until it ends if it needs no credentials.
	read func()
}

type callKey struct{}

// callOf returns the call of a context. Without a tap it is empty.
func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{read: func() {}}
}

// tap judges a call by its headers, before gRPC buffers anything of it. It does not block: it knows the form of credentials, and what
// earlier reviews have found.
func (a *authorization) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	c := &call{peer: &net.UnixAddr{}}
	if p, ok := peer.FromContext(ctx); ok {
		c.peer = p.Addr
	}
	source := peerHost(c.peer)
	if c.refused = a.checkCredentials(ctx, c, info.FullMethodName); c.refused != nil {
		a.from.markRefused(c.peer)
	}
	if c.user != nil {
		source = access.AccountOf(c.user)
	}
	// gRPC keeps the timer of a call that is refused here. So one with a long deadline is refused by its handler.
	deadline, bounded := ctx.Deadline()
	refuseHere := !bounded || time.Until(deadline) < readTimeout
	// The place for reading is taken before gRPC buffers anything, and by a call that its handler refuses too.
	if c.refused == nil || !refuseHere {
		places, most := a.reading, maxSourceReading
		if verbs[info.FullMethodName] == anyone {
			places, most = a.anonymous, maxSourceAnonymous
		}
		release, err := take(places, source, most)
		if err != nil {
			c.refused, refuseHere = err, true
		}
		c.read = release
	}
	if c.refused != nil && refuseHere {
		a.refusals.logRefused(ctx, info.FullMethodName, c.refused)
		a.refused.WithLabelValues(status.Code(c.refused).String()).Inc()
		return ctx, c.refused
	}
	// The call may end before its handler runs.
	context.AfterFunc(ctx, c.read)
	return context.WithValue(ctx, callKey{}, c), nil
}

// checkCredentials sets the call's user or token, or returns why it is refused.
func (a *authorization) checkCredentials(ctx context.Context, c *call, method string) (err error) {
	verb, known := verbs[method]
	if a.reviewer == nil {
		c.user = a.local(ctx)
		return nil
	}
	if verb == anyone {
		return nil
	}
	if c.token = bearerToken(ctx); c.token == "" {
		leaf := clientCertificate(ctx)
		switch {
		case leaf != nil:
			c.user, err = userOfCertificate(leaf, time.Now())
			return err
		case known && method == grpc_health_v1.Health_Watch_FullMethodName:
			return status.Error(codes.Unimplemented, "health is watched with credentials only: use Check")
		}
		return unauthenticatedError("the call has neither a bearer token (metadata authorization: Bearer …) nor a client certificate")
	}
	u, reviewed := a.reviewer.Known(c.token)
	switch c.user = u; {
	case reviewed && u == nil:
		return errInvalidToken
	case reviewed:
		c.token = ""
	}
	return nil
}

// beginCall returns the context of a call with its user, after the review of its token. end must be called.
func (a *authorization) beginCall(ctx context.Context, method string) (_ context.Context, end func(), err error) {
	c := callOf(ctx)
	if c.refused != nil {
		return ctx, nil, c.refused
	}
	verb, known := verbs[method]
	// Health must answer while the API server can't review callers.
	if a.reviewer != nil && verb == anyone {
		return ctx, func() {}, nil
	}
	// A review may take seconds, and the tap must not block. So it takes place here.
	if c.token != "" {
		if c.user, err = a.review(ctx, c); err != nil {
			return ctx, nil, err
		}
	}
	account := peerHost(c.peer)
	if c.user != nil {
		account = access.AccountOf(c.user)
	}
	// The connection stays only once its caller is authenticated. Before that it is a stranger's.
	if err := a.from.keepAuthenticated(c.peer, account); err != nil {
		return ctx, nil, err
	}
	if end, err = take(a.calls, account, maxUserCalls); err != nil {
		return ctx, nil, err
	}
	if a.reviewer == nil {
		return asUser(ctx, method, a.local), end, nil
	}
	if !a.rates.Of(account).Allow() {
		end()
		return ctx, nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
			"user %q makes more than %d calls a second: call less often, or raise --user-qps of the driver", account, a.rates.PerSecond)
	}
	// Only authenticated callers learn which methods exist.
	if !known {
		end()
		return ctx, nil, drivererr.New(pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "no permission allows %s", method)
	}
	return access.WithSight(access.WithUser(ctx, c.user), a.sees(method)), end, nil
}

// review asks the API server who the bearer of the call's token is.
func (a *authorization) review(ctx context.Context, c *call) (user.Info, error) {
	u, err := a.reviewer.User(ctx, peerHost(c.peer), c.token)
	switch {
	case err != nil:
		return nil, notReviewed("the bearer token can't be checked", err)
	case u == nil:
		a.from.markRefused(c.peer)
		return nil, errInvalidToken
	}
	return u, nil
}

// take takes a slot without waiting, and returns how to free it, which may be done twice.
func take(from *fair.Slots, key string, most int) (release func(), err error) {
	if !from.TryAcquire(key, most) {
		return nil, drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
			"%q, or all callers together, have too many calls in flight: call again when others have ended", key)
	}
	return sync.OnceFunc(func() { from.Release(key) }), nil
}

// sampleInterval is how often calls of one method that end with one code are logged.
const sampleInterval = time.Second

// sampler logs one of many calls that fail alike.
type sampler struct {
	logger *slog.Logger
	kinds  sync.Map // *rate.Sometimes by failure
}

// failure is a kind of failed calls. There are as many as methods and codes.
type failure struct {
	method string
	code   codes.Code
}

// do calls log, unless it did for a call of the kind within sampleInterval.
func (s *sampler) do(kind failure, log func()) {
	limit, _ := s.kinds.LoadOrStore(kind, &rate.Sometimes{Interval: sampleInterval})
	if limit, ok := limit.(*rate.Sometimes); ok {
		limit.Do(log)
	}
}

// logRefused logs a call that is refused by its headers.
func (s *sampler) logRefused(ctx context.Context, method string, err error) {
	// Clients choose the names of unknown methods, and each would be a key of the map.
	if _, known := verbs[method]; !known {
		method = "unknown"
	}
	kind := failure{method, status.Code(err)}
	s.do(kind, func() {
		s.logger.WarnContext(ctx, "refused call", "method", method, "code", kind.code.String(), "error", status.Convert(err).Message())
	})
}

const (
	// anyone needs no credentials: the method tells nothing of workloads.
	anyone access.Verb = "(none)"
	// anyUser needs credentials and no permission.
	anyUser access.Verb = "(authenticated)"
)

// verbs is what the caller of each method needs. A method without a row is refused.
var verbs = map[string]access.Verb{
	pb.WorkloadDriver_GetDriverInfo_FullMethodName:         anyUser,
	pb.WorkloadDriver_CalculateBatchContext_FullMethodName: access.Get,
	pb.WorkloadDriver_WatchBatchContext_FullMethodName:     access.Get,
	pb.WorkloadDriver_WatchWorkloads_FullMethodName:        access.Get,
	pb.WorkloadDriver_Plan_FullMethodName:                  access.Get,
	pb.WorkloadDriver_Preflight_FullMethodName:             access.Get,
	pb.WorkloadDriver_ListRevisions_FullMethodName:         access.Get,
	pb.TrafficRouter_VerifyWeight_FullMethodName:           access.Get,

	pb.WorkloadDriver_Initialize_FullMethodName:    access.Drive,
	pb.WorkloadDriver_UpgradeBatch_FullMethodName:  access.Drive,
	pb.WorkloadDriver_Finalize_FullMethodName:      access.Drive,
	pb.WorkloadDriver_Undo_FullMethodName:          access.Drive,
	pb.TrafficRouter_SetWeight_FullMethodName:      access.Drive,
	pb.TrafficRouter_SetHeaderRoute_FullMethodName: access.Drive,
	pb.TrafficRouter_SetMirror_FullMethodName:      access.Drive,
	pb.TrafficRouter_Reset_FullMethodName:          access.Drive,

	pb.WorkloadDriver_Adopt_FullMethodName:  access.Adopt,
	pb.WorkloadDriver_Disown_FullMethodName: access.Adopt,

	grpc_health_v1.Health_Check_FullMethodName: anyone,
	grpc_health_v1.Health_List_FullMethodName:  anyone,
	// A watch lasts.
	grpc_health_v1.Health_Watch_FullMethodName: anyUser,
	// Reflection shows the contract, which is public.
	"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo":      anyUser,
	"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": anyUser,
}

// namespaceOf returns the namespace that a request is about. Empty means all.
func namespaceOf(request any) string {
	switch r := request.(type) {
	case interface{ GetWorkload() *pb.WorkloadRef }:
		return r.GetWorkload().GetNamespace()
	case *pb.WatchWorkloadsRequest:
		return r.GetNamespace()
	}
	return ""
}
