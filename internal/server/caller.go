// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"errors"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// reserved are the prefixes that a certificate's subject can't have: of Kubernetes' own names, of SPIFFE IDs, which belong in a URI,
// and of the users of unix sockets.
var reserved = []string{"system:", "spiffe:", "unix:"}

// errInvalidToken refuses a token.
var errInvalidToken = unauthenticatedError("the bearer token is invalid, has expired, or is for another audience: "+
	"make one with `kubectl create token NAME --audience %s`", review.Audience)

// bearerToken returns the token in the call's metadata, or "" if there is none.
func bearerToken(ctx context.Context) string {
	// Another scheme may come first: a proxy may have added its own credentials.
	for _, value := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if scheme, token, ok := strings.Cut(value, " "); ok && strings.EqualFold(scheme, "bearer") {
			return strings.TrimSpace(token)
		}
	}
	return ""
}

// clientCertificate returns the certificate that the caller's TLS handshake proved, or nil.
func clientCertificate(ctx context.Context) *x509.Certificate {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	// Without a chain to the CA, the certificate proves nothing.
	if !ok || len(info.State.VerifiedChains) == 0 {
		return nil
	}
	return info.State.VerifiedChains[0][0]
}

// userOfCertificate returns the SPIFFE ID of a certificate, or else its common name with its organizations as groups, as the API
// server reads them. A connection may outlive its certificate.
func userOfCertificate(leaf *x509.Certificate, now time.Time) (user.Info, error) {
	if now.After(leaf.NotAfter) {
		return nil, unauthenticatedError("the client certificate has expired at %s: connect again with a new one", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	// A mesh names workloads by SPIFFE ID only, so a common name beside it is ignored.
	if slices.ContainsFunc(leaf.URIs, func(u *url.URL) bool { return u.Scheme == "spiffe" }) {
		id, err := x509svid.IDFromCert(leaf)
		if err != nil {
			return nil, unauthenticatedError("the client certificate has no valid SPIFFE ID: %v", err)
		}
		return &user.DefaultInfo{Name: id.String(), Groups: []string{user.AllAuthenticated}}, nil
	}
	names := append([]string{leaf.Subject.CommonName}, leaf.Subject.Organization...)
	if names[0] == "" {
		return nil, unauthenticatedError("the client certificate names no user: it needs a SPIFFE ID or a common name")
	}
	for _, name := range names {
		if i := slices.IndexFunc(reserved, func(p string) bool { return strings.HasPrefix(name, p) }); i >= 0 {
			return nil, unauthenticatedError("the client certificate names %q, and the names that begin with %q are not for certificates", name, reserved[i])
		}
	}
	return &user.DefaultInfo{Name: names[0], Groups: append(slices.Clone(leaf.Subject.Organization), user.AllAuthenticated)}, nil
}

// certificateUser returns the user in the client certificate of a call that is not reviewed, for audit, or nil if there is none.
func certificateUser(ctx context.Context) user.Info {
	leaf := clientCertificate(ctx)
	if leaf == nil {
		return nil
	}
	u, _ := userOfCertificate(leaf, time.Now()) // the call is allowed without a name, which only the log then lacks
	return u
}

// notReviewed returns the error of a call that can't be judged.
func notReviewed(what string, err error) error {
	if apierrors.IsForbidden(err) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_FORBIDDEN,
			"%s: the driver may not make reviews: bind the ClusterRole system:auth-delegator to its account: %v", what, err)
	}
	if errors.Is(err, access.ErrBusy) {
		return drivererr.New(pb.ErrorReason_ERROR_REASON_RATE_LIMITED, "%s: %v", what, err)
	}
	// The caller's credentials are not to blame for a missing answer, so the code is not UNAUTHENTICATED.
	return drivererr.New(pb.ErrorReason_ERROR_REASON_API_UNAVAILABLE, "%s: %v", what, err)
}

func unauthenticatedError(format string, args ...any) error {
	return drivererr.New(pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED, format, args...)
}

// ownUser is the user of calls by this process's own account: over a unix socket, or by the host that launched it.
func ownUser(context.Context) user.Info {
	return &user.DefaultInfo{Name: "unix:" + strconv.Itoa(os.Getuid())}
}
