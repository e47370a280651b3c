// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package review asks the API server who the bearer of a token is, and what a user may do, with the authenticators and
// authorizers that Kubernetes' own extension servers use.
package review

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/access"
)

const (
	// Audience is what a token must have been issued for.
	Audience = "lockstep"
	// allowTTL and denyTTL are how long answers are cached, and so how long a revoked permission lasts at most.
	allowTTL = 10 * time.Second
	denyTTL  = time.Second
	// timeout bounds one request.
	timeout = 10 * time.Second
	// qps and burst bound the reviews per second, so that calls with random tokens can't overload the API server.
	qps, burst = 200, 400
)

// ErrUnavailable is wrapped by errors of reviews that could not be made: nothing is known about the caller.
var ErrUnavailable = errors.New("the API server did not answer")

// Reviewer makes reviews, and caches their answers.
type Reviewer struct {
	tokens authenticator.Token
	users  authorizer.Authorizer
}

// New returns a Reviewer with the rights of config, which must allow TokenReviews and SubjectAccessReviews: the ClusterRole
// system:auth-delegator does.
func New(config *rest.Config) (*Reviewer, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst, config.RateLimiter = qps, burst, nil
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for reviews: %w", err)
	}
	// A caller waits for the answer, and repeats a call that fails.
	retry := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}
	tokens, err := webhook.NewFromInterface(client.AuthenticationV1(), nil, retry, timeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal: authenticatorfactory.RecordRequestTotal, RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	})
	if err != nil {
		return nil, fmt.Errorf("make token reviewer: %w", err)
	}
	users, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: allowTTL, DenyCacheTTL: denyTTL, WebhookRetryBackoff: &retry,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("make access reviewer: %w", err)
	}
	return &Reviewer{tokens: cache.New(answered{tokens}, false, allowTTL, denyTTL), users: users}, nil
}

// User returns the user of a token, nil if the token is not valid for [Audience].
func (r *Reviewer) User(ctx context.Context, token string) (user.Info, error) {
	response, ok, err := r.tokens.AuthenticateToken(authenticator.WithAudiences(ctx, authenticator.Audiences{Audience}), token)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: review token: %w", ErrUnavailable, err)
	case !ok:
		return nil, nil //nolint:nilnil // no user is an answer, not an error
	}
	return response.User, nil
}

// MayRelease reports whether the user has the verb on releases of the namespace; "" is all namespaces.
func (r *Reviewer) MayRelease(ctx context.Context, u user.Info, verb access.Verb, namespace string) (bool, error) {
	return r.allowed(ctx, authorizer.AttributesRecord{
		User: u, Verb: string(verb), Namespace: namespace,
		APIGroup: access.Group, APIVersion: "*", Resource: access.Resource, ResourceRequest: true,
	})
}

// MayRead reports whether the user may get a path that belongs to no resource, such as /metrics.
func (r *Reviewer) MayRead(ctx context.Context, u user.Info, path string) (bool, error) {
	return r.allowed(ctx, authorizer.AttributesRecord{User: u, Verb: "get", Path: path})
}

func (r *Reviewer) allowed(ctx context.Context, a authorizer.Attributes) (bool, error) {
	decision, _, err := r.users.Authorize(ctx, a)
	if err != nil {
		return false, fmt.Errorf("%w: review access: %w", ErrUnavailable, err)
	}
	return decision == authorizer.DecisionAllow, nil
}

// answered reports a token that the API server has found to be invalid as such, and not as an error.
type answered struct{ authenticator.Token }

// AuthenticateToken implements authenticator.Token.
func (a answered) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := a.Token.AuthenticateToken(ctx, token)
	var transport *url.Error
	// Errors of the client wrap others or have a reason. That of an answer is a text, for example that the token has expired.
	failed := ctx.Err() != nil || errors.As(err, &transport) || errors.Unwrap(err) != nil || apierrors.ReasonForError(err) != "" ||
		errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if err != nil && !failed {
		return nil, false, nil
	}
	return response, ok, err //nolint:wrapcheck // User wraps it
}
