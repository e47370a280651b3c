// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// authorization lets a call pass if its caller has the permission.
type authorization struct {
	// reviewer answers who the caller is and what they may. Nil: every caller may do everything.
	reviewer *review.Reviewer
	// rates bound the calls of each user whom the reviewer knows.
	rates *userRates
	// local returns the user of calls that change something without a reviewer.
	local func(context.Context) user.Info
}

// LocalUser are the options of a server that only this process's own account reaches, such as that of a plugin. Calls are those of
// the user; nil: of the account.
func LocalUser(u func(context.Context) user.Info) []grpc.ServerOption {
	if u == nil {
		u = ownUser
	}
	return (&authorization{local: u}).options()
}

func (a *authorization) options() []grpc.ServerOption {
	return []grpc.ServerOption{grpc.ChainUnaryInterceptor(a.unary), grpc.ChainStreamInterceptor(a.stream)}
}

// begin returns the context of a call, with its user.
func (a *authorization) begin(ctx context.Context, method string) (context.Context, error) {
	verb, known := verbs[method]
	switch {
	case verb == anyone, a.reviewer == nil && verb != access.Drive && verb != access.Adopt:
		return ctx, nil
	case a.reviewer == nil:
		return access.WithUser(ctx, a.local(ctx)), nil
	}
	u, err := a.caller(ctx)
	if err != nil {
		return ctx, err
	}
	if err := a.rates.take(u.GetName()); err != nil {
		return ctx, err
	}
	if !known {
		return ctx, drivererr.New(pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED, "no permission allows %s", method)
	}
	return access.WithUser(ctx, u), nil
}

// check returns an error unless the caller may call the method for a namespace.
func (a *authorization) check(ctx context.Context, method, namespace string) error {
	verb := verbs[method]
	if a.reviewer == nil || verb == anyone || verb == anyUser {
		return nil
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

func (a *authorization) unary(ctx context.Context, request any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	ctx, err := a.begin(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if err := a.check(ctx, info.FullMethod, namespaceOf(request)); err != nil {
		return nil, err
	}
	return handler(ctx, request)
}

func (a *authorization) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, err := a.begin(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return handler(srv, &authorizedStream{contextStream: contextStream{ServerStream: stream, ctx: ctx}, by: a, method: info.FullMethod})
}

// authorizedStream checks the permission for the request, and again for each message: a stream lasts longer than a permission.
type authorizedStream struct {
	contextStream

	by     *authorization
	method string
	// namespace is that of the request. Empty: a message passes if the caller may see its workload.
	namespace string
}

// RecvMsg receives the request and checks it.
func (s *authorizedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err //nolint:wrapcheck // the stream's own
	}
	if s.namespace = namespaceOf(m); s.namespace == "" {
		return nil
	}
	return s.by.check(s.ctx, s.method, s.namespace)
}

// SendMsg sends a message, or leaves it out if it is about a workload that the caller may not see.
func (s *authorizedStream) SendMsg(m any) error {
	if s.namespace != "" {
		if err := s.by.check(s.ctx, s.method, s.namespace); err != nil {
			return err
		}
		return s.ServerStream.SendMsg(m) //nolint:wrapcheck // the stream's own
	}
	if w, ok := m.(*pb.WatchWorkloadsResponse); ok && !w.GetSynced() {
		err := s.by.check(s.ctx, s.method, "")
		if denied(err) {
			err = s.by.check(s.ctx, s.method, workloadOf(w).GetNamespace())
		}
		if denied(err) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return s.ServerStream.SendMsg(m) //nolint:wrapcheck // the stream's own
}

func denied(err error) bool {
	return drivererr.Reason(err) == pb.ErrorReason_ERROR_REASON_PERMISSION_DENIED
}

func workloadOf(w *pb.WatchWorkloadsResponse) *pb.WorkloadRef {
	if removed := w.GetRemoved(); removed != nil {
		return removed
	}
	return w.GetContext().GetWorkload()
}
