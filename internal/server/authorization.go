// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/traffic/fair"
)

// authorization lets a call pass if its caller has the permission.
type authorization struct {
	// reviewer answers who the caller is and what they may. Nil means that every caller may do everything.
	reviewer *review.Reviewer
	// rates bound the calls of each user whom the reviewer knows, and audits the lines about refusals of one user, method and namespace.
	rates, audits *access.Rates
	// local returns the user of calls without a reviewer. It may return nil.
	local func(context.Context) user.Info
	// from has the connections of the calls, reading the calls whose request has not been read, calls those in flight, and anonymous those
	// that need no credentials.
	from                      *connections
	reading, calls, anonymous *fair.Slots
	// plans and lists bound the calls at a time that compute much, and that answer much. Further ones wait.
	plans, lists *fair.Slots
	refusals     *sampler
	// refused counts the calls that the tap refuses, which no interceptor sees.
	refused *prometheus.CounterVec
}

// authorization returns what lets calls over e pass.
func (o Options) authorization(e endpoint.Endpoint, from *connections) *authorization {
	a := &authorization{
		refused: promauto.With(o.Registry).NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_refused_calls_total",
			Help: "gRPC calls that were refused by their headers, before they were read, by code. grpc_server_handled_total has all others.",
		}, []string{"grpc_code"}),
		from: from, refusals: &sampler{logger: o.Logger}, audits: access.NewRates(1), local: o.User,
		reading: fair.NewSlots(maxReading), calls: fair.NewSlots(maxCalls), anonymous: fair.NewSlots(maxAnonymous),
		plans: fair.NewSlots(maxPlans), lists: fair.NewSlots(maxLists),
	}
	if !isUnix(e) {
		a.reviewer, a.rates, a.local = o.Reviewer, access.NewRates(cmp.Or(o.UserQPS, DefaultUserQPS)), certificateUser
	} else if a.local == nil {
		a.local = ownUser
	}
	return a
}

// LocalUser are the options of a server that only this process's own account reaches, such as that of a plugin. Calls are those of
// the user; nil: of the account.
func LocalUser(u func(context.Context) user.Info) []grpc.ServerOption {
	if u == nil {
		u = ownUser
	}
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(
		func(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			return handler(asUser(ctx, info.FullMethod, u), request)
		})}
}

// asUser returns the context of a call with its user, if it changes something.
func asUser(ctx context.Context, method string, u func(context.Context) user.Info) context.Context {
	if verb := verbs[method]; verb == access.Drive || verb == access.Adopt {
		return access.WithUser(ctx, u(ctx))
	}
	return ctx
}

// check returns an error unless the caller may call the method for a namespace.
func (a *authorization) check(ctx context.Context, method, namespace string) error {
	verb := verbs[method]
	if a.reviewer == nil || verb == anyone || verb == anyUser {
		return nil
	}
	if len(namespace) > maxNamespace {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_INVALID_REQUEST, "the namespace has more than %d characters", maxNamespace)
	}
	u := access.UserOf(ctx)
	ok, err := a.reviewer.MayRelease(ctx, u, verb, namespace)
	switch {
	case err != nil:
		return notReviewed(fmt.Sprintf("the permission of %q can't be checked", u.GetName()), err)
	case ok:
		return nil
	}
	where := "in namespace " + namespace
	if namespace == "" {
		where = "in all namespaces"
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED,
		"user %q may not %s %s.%s %s: bind a role with this verb to the user, for example the ClusterRole lockstep-%s",
		u.GetName(), verb, access.Resource, access.Group, where, roleWith(verb))
}

// roleWith names the shipped ClusterRole with a verb.
func roleWith(verb access.Verb) string {
	if verb == access.Get {
		return "viewer"
	}
	return "operator"
}

func (a *authorization) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	// This runs before the request is read, so that a caller without permission to call has nothing buffered.
	ctx, end, err := a.beginCall(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	defer end()
	s := &authorizedStream{
		contextStream: contextStream{ServerStream: stream, ctx: ctx}, by: a, method: info.FullMethod, lasts: info.IsServerStream,
	}
	// A driver's answer may be large although the request is cheap, and calls that compute much first wait for caches. The driver asks for
	// this turn when it has waited.
	slots, limit := a.lists, turnTimeout
	if plans[info.FullMethod] {
		slots, limit = a.plans, slotTimeout
	}
	s.ctx = access.WithTurn(ctx, func(ctx context.Context) bool { return s.acquire(ctx, slots, limit) })
	defer func() {
		// The slot is held until the answer is sent, since a client that does not read keeps it in memory.
		if s.held != nil {
			s.held.Release(s.namespace)
		}
	}()
	return handler(srv, s)
}

// plans are the methods whose calls compute much, once they have a turn.
var plans = map[string]bool{
	pb.WorkloadDriver_Plan_FullMethodName: true, pb.WorkloadDriver_Preflight_FullMethodName: true, pb.WorkloadDriver_ListRevisions_FullMethodName: true,
}

// authorizedStream reads the request in time and checks the permission for it. A stream lasts longer than a permission, so that it checks
// each message.
type authorizedStream struct {
	contextStream

	by     *authorization
	method string
	// lasts is true if it is a stream for the client, too.
	lasts bool
	// read is true once the request has been received. namespace is that of the request. Without one the driver asks what the caller sees.
	read      bool
	namespace string
	// held has the slots of which the call holds one, nil if it needs none.
	held *fair.Slots
}

// RecvMsg receives the request and checks it.
func (s *authorizedStream) RecvMsg(m any) error {
	// Only reflection's clients stream, and their first message was checked.
	if s.read {
		return s.ServerStream.RecvMsg(m) //nolint:wrapcheck // the stream's own
	}
	// gRPC has no deadline for a message, and a client that sends none would hold its place for reading.
	err := callWithin(readTimeout, func() error { return s.ServerStream.RecvMsg(m) }, func() error {
		return status.Errorf(codes.DeadlineExceeded, "the request did not arrive within %s", readTimeout)
	})
	if err != nil {
		return err
	}
	s.read = true
	// The request is read, so its place goes to another call before the permission is checked. A call that needs no credentials has no other.
	if verbs[s.method] != anyone {
		callOf(s.ctx).read()
	}
	// Without a namespace the answer has the namespaces that the caller sees, which the driver asks for one by one.
	if s.namespace = namespaceOf(m); s.namespace == "" && verbs[s.method] == access.Get && s.lasts {
		return nil
	}
	if err := s.check(); err != nil {
		return err
	}
	// A call that waits for the cluster takes a turn for its answer only. This one does not wait.
	if r, ok := m.(*pb.CalculateBatchContextRequest); ok && r.GetIncludeGroups() && !s.acquire(s.ctx, s.by.lists, slotTimeout) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED, "too many such calls for namespace %s are waiting: call again later", s.namespace)
	}
	return nil
}

// check returns an error unless the caller may call for the namespace of the request. A refusal is logged for audit.
func (s *authorizedStream) check() error {
	err := s.by.check(s.ctx, s.method, s.namespace)
	u := access.UserOf(s.ctx)
	// Users choose the namespace, so neither the refusals of another user nor those of another namespace may take the place of this one.
	if isDenied(err) && s.by.audits.Of(strings.Join([]string{access.AccountOf(u), s.method, s.namespace}, " ")).Allow() {
		s.by.refusals.logger.InfoContext(s.ctx, "audit", "user", u.GetName(), "method", s.method, "namespace", s.namespace,
			"code", status.Code(err).String(), "error", status.Convert(err).Message())
	}
	return err
}

// acquire waits for a slot, which the call holds until it ends, and reports whether it got one. Namespaces take turns.
func (s *authorizedStream) acquire(ctx context.Context, from *fair.Slots, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if !from.Acquire(ctx, s.namespace) {
		return false
	}
	s.held = from
	return true
}

// SendMsg returns once a message is sent. It closes the connection of a client that does not read, with which gRPC would keep the message.
func (s *authorizedStream) SendMsg(m any) error {
	if s.lasts && s.namespace != "" {
		if err := s.check(); err != nil {
			return err
		}
	}
	a := answer{m, make(chan struct{})}
	if err := s.ServerStream.SendMsg(a); err != nil {
		return err //nolint:wrapcheck // the stream's own
	}
	ctx := s.ServerStream.Context()
	conn, gone := s.by.from.of(callOf(ctx).peer), ctx.Done()
	if conn != nil {
		// The answer of a call that has ended may still be queued.
		gone = conn.gone
	}
	timer := time.NewTimer(sendTimeout)
	defer timer.Stop()
	select {
	case <-a.released:
		return nil
	case <-gone:
		return status.Error(codes.Canceled, "the client has gone")
	case <-timer.C:
	}
	if conn != nil && ctx.Err() == nil {
		_ = conn.Close()
	}
	return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED,
		"the client has read nothing for %s: read faster, and call again", sendTimeout)
}

// callWithin returns the error of a call of gRPC, which ends with the stream, or that of late after a time.
func callWithin(limit time.Duration, call, late func() error) error {
	done := make(chan error, 1)
	// gRPC can't interrupt a receive or a send, but ends both once the handler has returned. The channel has room for the late result.
	go func() { done <- call() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return late()
	}
}

// sees reports whether the caller may see the releases of a namespace.
func (a *authorization) sees(method string) func(context.Context, string) (bool, error) {
	return func(ctx context.Context, namespace string) (bool, error) {
		// One permission for all namespaces saves a review for each.
		err := a.check(ctx, method, "")
		if isDenied(err) {
			err = a.check(ctx, method, namespace)
		}
		if isDenied(err) {
			return false, nil
		}
		return err == nil, err
	}
}

func isDenied(err error) bool {
	return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED
}
