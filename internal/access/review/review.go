// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package review asks the API server who the bearer of a token is, and what a user may do, with the authenticators and
// authorizers that Kubernetes' own extension servers use.
package review

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/lru"

	"github.com/lockstep-rollouts/lockstep/internal/access"
)

const (
	// Audience is what a token must have been issued for.
	Audience = "lockstep"
	// allowTTL and denyTTL are how long answers are cached, and so how long a revoked permission lasts at most.
	allowTTL, denyTTL = 10 * time.Second, 5 * time.Second
	// timeout bounds one request, with its retries and its wait for the limit.
	timeout = 10 * time.Second
	// maxTokens bounds the tokens that are remembered: as many valid as invalid ones, so that random tokens displace no valid one.
	maxTokens = 4096
)

// retry is for requests of callers, who wait for the answer, and repeat a call that fails.
var retry = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 3}

// ErrUnavailable is wrapped by errors of reviews that could not be made: nothing is known about the caller.
var ErrUnavailable = errors.New("the API server did not answer")

// Reviewer makes reviews, and caches their answers.
type Reviewer struct {
	// audience is what tokens must have been issued for. Empty means the API server's own.
	audience string
	// unknown reviews tokens by the caller's address, known those that were valid before, so that random tokens do not delay valid ones.
	unknown, known authenticator.Token
	users          authorizer.Authorizer
	// valid and invalid have the last answer about a token, by its hash.
	valid, invalid *lru.Cache
	asking         singleflight.Group
}

// answer is what the API server last said about a token.
type answer struct {
	user  user.Info
	until time.Time
}

// New returns a Reviewer with the rights of config, which must allow TokenReviews and SubjectAccessReviews: the ClusterRole
// system:auth-delegator does.
func New(config *rest.Config) (*Reviewer, error) {
	unknown, err := tokenReviewer(config)
	if err != nil {
		return nil, err
	}
	// Each client has a limiter of its own, so that unknown tokens delay neither known ones nor reviews of access.
	known, err := tokenReviewer(config)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(access.LimitRequests(config))
	if err != nil {
		return nil, fmt.Errorf("make client for reviews: %w", err)
	}
	users, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: client.AuthorizationV1(), AllowCacheTTL: allowTTL, DenyCacheTTL: denyTTL, WebhookRetryBackoff: &retry,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("make access reviewer: %w", err)
	}
	return &Reviewer{
		audience: Audience, unknown: unknown, known: known, users: users, valid: lru.New(maxTokens), invalid: lru.New(maxTokens),
	}, nil
}

func tokenReviewer(config *rest.Config) (authenticator.Token, error) {
	client, err := kubernetes.NewForConfig(access.LimitRequests(config))
	if err != nil {
		return nil, fmt.Errorf("make client for reviews: %w", err)
	}
	tokens, err := webhook.NewFromInterface(client.AuthenticationV1(), nil, retry, timeout, webhook.AuthenticatorMetrics{
		RecordRequestTotal: authenticatorfactory.RecordRequestTotal, RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	})
	if err != nil {
		return nil, fmt.Errorf("make token reviewer: %w", err)
	}
	return answered{tokens}, nil
}

// Known returns the last answer about a token without asking: its user, nil if it is not valid, and whether the answer still counts. A token
// that can't be one for the audience is not valid.
func (r *Reviewer) Known(token string) (u user.Info, known bool) {
	now := time.Now()
	// Random tokens are refused without a request and without an entry in a cache.
	if r.audience != "" && !wellFormed(token, now) {
		return nil, true
	}
	// A token may be as large as all headers together. Its hash has 32 bytes.
	key := keyOf(token)
	last, _ := cachedAnswer(r.valid, key)
	if now.Before(last.until) {
		return last.user, true
	}
	if refused, _ := cachedAnswer(r.invalid, key); now.Before(refused.until) {
		return nil, true
	}
	return last.user, false
}

// tokenKey stands for a token in a cache.
type tokenKey [sha256.Size]byte

func keyOf(token string) tokenKey { return sha256.Sum256([]byte(token)) }

func cachedAnswer(answers *lru.Cache, key tokenKey) (answer, bool) {
	value, _ := answers.Get(key)
	a, ok := value.(answer)
	return a, ok
}

// User returns the user of a token, nil if the token is not valid for the audience. source is the address of the caller.
func (r *Reviewer) User(ctx context.Context, source, token string) (user.Info, error) {
	if u, known := r.Known(token); known {
		return u, nil
	}
	key := keyOf(token)
	asked := r.asking.DoChan(string(key[:]), func() (any, error) {
		if u, known := r.Known(token); known { // another call's review has ended meanwhile
			return u, nil
		}
		// Several calls may wait for this review. It must not end with the first of them.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return r.reviewToken(ctx, source, token, key)
	})
	select {
	case result := <-asked:
		u, _ := result.Val.(user.Info)
		return u, result.Err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: review token: %w", ErrUnavailable, ctx.Err())
	}
}

func (r *Reviewer) reviewToken(ctx context.Context, source, token string, key tokenKey) (user.Info, error) {
	reviewer, by := r.unknown, source
	// A token that was valid before is counted by its user, so a flood from the same address does not delay it.
	before, wasValid := cachedAnswer(r.valid, key)
	if wasValid {
		reviewer, by = r.known, access.AccountOf(before.user)
	}
	if r.audience != "" {
		ctx = authenticator.WithAudiences(ctx, authenticator.Audiences{r.audience})
	}
	response, ok, err := reviewer.AuthenticateToken(access.WithSource(ctx, by), token)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: review token: %w", ErrUnavailable, err)
	case wasValid && !ok:
		// It is revoked, or the API server could not look up what it is bound to: the answers are the same. So it is reviewed once more, by the
		// caller's address.
		r.valid.Remove(key)
		return nil, fmt.Errorf("%w: it refuses a token that was valid", ErrUnavailable)
	case !ok:
		r.invalid.Add(key, answer{until: time.Now().Add(denyTTL)})
		return nil, nil //nolint:nilnil // no user is an answer, not an error
	}
	r.valid.Add(key, answer{response.User, time.Now().Add(allowTTL)})
	return response.User, nil
}

// MayRelease reports whether the user has the verb on releases of the namespace; "" is all namespaces.
func (r *Reviewer) MayRelease(ctx context.Context, u user.Info, verb access.Verb, namespace string) (bool, error) {
	return r.authorize(ctx, authorizer.AttributesRecord{
		User: u, Verb: string(verb), Namespace: namespace,
		APIGroup: access.Group, APIVersion: "*", Resource: access.Resource, ResourceRequest: true,
	})
}

// authorize reports whether a user may do something.
func (r *Reviewer) authorize(ctx context.Context, what authorizer.AttributesRecord) (bool, error) {
	// The review is counted by user: a user who asks about many namespaces delays no other.
	ctx, cancel := context.WithTimeout(access.WithSource(ctx, access.AccountOf(what.User)), timeout)
	defer cancel()
	decision, _, err := r.users.Authorize(ctx, what)
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
	// A caller with an invalid token must not read that the API server is unavailable and try again.
	if err != nil && !failed {
		return nil, false, nil
	}
	return response, ok, err //nolint:wrapcheck // User wraps it
}

// wellFormed reports whether a token may be valid: a JWT for [Audience] that has not expired. Its signature is the API server's to check.
func wellFormed(token string, now time.Time) bool {
	var claims jwt.RegisteredClaims
	_, parts, err := jwt.NewParser().ParseUnverified(token, &claims)
	// A token without a signature is a JWT too, but the API server issues none.
	return err == nil && parts[2] != "" && slices.Contains(claims.Audience, Audience) && claims.ExpiresAt != nil && claims.ExpiresAt.After(now)
}
