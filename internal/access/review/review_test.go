// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package review

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/rest/fake"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/text"
)

func tokenOf(claims string) string {
	return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// good returns a token of a user.
func good(name string) string {
	return tokenOf(fmt.Sprintf(`{"aud":["lockstep"],"exp":%d,"sub":%q}`, time.Now().Add(time.Hour).Unix(), name))
}

func TestWellFormed(t *testing.T) {
	now := time.Unix(1000, 0)
	tests := map[string]struct {
		token string
		want  bool
	}{
		"for the driver":         {tokenOf(`{"aud":["lockstep","x"],"exp":1001}`), true},
		"one audience":           {tokenOf(`{"aud":"lockstep","exp":1001}`), true},
		"another audience":       {tokenOf(`{"aud":["https://kubernetes.default.svc"],"exp":1001}`), false},
		"no audience":            {tokenOf(`{"exp":1001}`), false},
		"expired":                {tokenOf(`{"aud":["lockstep"],"exp":1000}`), false},
		"no expiry":              {tokenOf(`{"aud":["lockstep"]}`), false},
		"no claims":              {tokenOf(`[]`), false},
		"no signature":           {strings.TrimSuffix(tokenOf(`{"aud":["lockstep"],"exp":1001}`), "c2ln"), false},
		"not encoded":            {"a.b!.c", false},
		"random":                 {"0123456789abcdef", false},
		"empty":                  {"", false},
		"an audience of numbers": {tokenOf(`{"aud":[1],"exp":1001}`), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, wellFormed(tt.token, now), "well-formed")
		})
	}
}

// newAPI returns an API server to which only tokens of "ada" and "bob" are valid, of whom only ada may do something, and the number of its
// requests.
func newAPI(t *testing.T) (*rest.Config, *atomic.Int64) {
	t.Helper()
	var requests atomic.Int64
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
			var review authorizationv1.SubjectAccessReview
			_ = json.NewDecoder(r.Body).Decode(&review)
			review.Status.Allowed = review.Spec.User == "ada"
			_ = json.NewEncoder(w).Encode(review)
			return
		}
		var review authenticationv1.TokenReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		var claims struct{ Sub string }
		if parts := strings.Split(review.Spec.Token, "."); len(parts) == 3 {
			raw, _ := base64.RawURLEncoding.DecodeString(parts[1])
			_ = json.Unmarshal(raw, &claims)
		}
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: claims.Sub == "ada" || claims.Sub == "bob", Audiences: review.Spec.Audiences,
			User: authenticationv1.UserInfo{Username: claims.Sub},
		}
		_ = json.NewEncoder(w).Encode(review)
	})
	return &rest.Config{
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
		Transport: fake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			api(w, r)
			return w.Result(), nil
		}).Transport,
	}, &requests
}

// newReviewer returns a reviewer, and the number of its requests.
func newReviewer(t *testing.T) (*Reviewer, *atomic.Int64) {
	t.Helper()
	config, requests := newAPI(t)
	r, err := New(config)
	require.NoError(t, err)
	return r, requests
}

// Answers are cached, and known without a request.
func TestAnswersAreCached(t *testing.T) {
	r, requests := newReviewer(t)
	for _, name := range []string{"ada", "eve"} {
		token := good(name)
		_, known := r.Known(token)
		assert.False(t, known, "%s is known before a review", name)
		for range 3 {
			u, err := r.User(t.Context(), "192.0.2.1", token)
			assert.True(t, err == nil && (u != nil) == (name == "ada"), "%s: %v, %v", name, u, err)
		}
		if u, known := r.Known(token); !known || (u != nil) != (name == "ada") {
			t.Errorf("after the review of %s: %v, %t", name, u, known)
		}
	}
	u, err := r.User(t.Context(), "192.0.2.1", "random")
	assert.True(t, u == nil && err == nil, "a token that can't be valid: %v, %v", u, err)
	assert.Equal(t, int64(2), requests.Load(), "requests, want one for each token")
}

// The API server refuses a valid token, too, if it can't look up what the token is bound to. Its answer is that of a revoked token.
func TestRefusalOfAValidToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, _ := newAPI(t)
		answers, refuses := config.Transport, false
		config.Transport = fake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
			if !refuses {
				return answers.RoundTrip(r)
			}
			w := httptest.NewRecorder()
			_ = json.NewEncoder(w).Encode(authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
				Audiences: []string{Audience}, Error: "service account token has been invalidated",
			}})
			return w.Result(), nil
		}).Transport
		r, err := New(config)
		require.NoError(t, err)
		ask := func(token string) (user.Info, error) { return r.User(t.Context(), "192.0.2.1", token) }
		token := good("ada")
		u, err := ask(token)
		require.True(t, u != nil && err == nil, "%v, %v", u, err)
		time.Sleep(allowTTL) //nolint:forbidigo // The bubble's clock.
		u, known := r.Known(token)
		assert.True(t, u != nil && !known, "after its time: %v, known %t", u, known)
		refuses = true
		if u, err := ask(token); u != nil || !errors.Is(err, ErrUnavailable) {
			t.Errorf("refused once after it was valid: %v, %v, want an error that is retried", u, err)
		}
		u, known = r.Known(token)
		assert.True(t, u == nil && !known, "after that: %v, known %t", u, known)
		u, err = ask(token)
		assert.True(t, u == nil && err == nil, "refused twice: %v, %v, want an invalid token", u, err)
		u, err = ask(good("bob"))
		assert.True(t, u == nil && err == nil, "never valid: %v, %v, want an invalid token", u, err)
		refuses = false
		time.Sleep(denyTTL) //nolint:forbidigo // The bubble's clock.
		for _, name := range []string{"ada", "bob"} {
			u, err := ask(good(name))
			assert.True(t, u != nil && err == nil, "%s after the API server has recovered: %v, %v", name, u, err)
		}
	})
}

// burst is how many requests one source may cause at once.
const burst = 100

// An address that tries many tokens delays neither the callers of other addresses nor tokens that were valid before.
func TestLoudAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, requests := newReviewer(t)
		known := good("ada")
		_, err := r.User(t.Context(), "192.0.2.1", known)
		require.NoError(t, err)
		var loud sync.WaitGroup
		for i := range 300 {
			loud.Go(func() { _, _ = r.User(t.Context(), "192.0.2.1", good(fmt.Sprint(i))) })
		}
		synctest.Wait()
		began := time.Now()
		another := tokenOf(fmt.Sprintf(`{"aud":"lockstep","exp":%d,"sub":"ada"}`, began.Add(time.Hour).Unix()))
		u, err := r.User(t.Context(), "192.0.2.2", another)
		assert.True(t, err == nil && u != nil, "a caller of another address: %v, %v", u, err)
		before, _ := cachedAnswer(r.valid, keyOf(known))
		r.valid.Add(keyOf(known), answer{user: before.user}) // it is to be reviewed again
		u, err = r.User(t.Context(), "192.0.2.1", known)
		assert.True(t, err == nil && u != nil, "a token that was valid before: %v, %v", u, err)
		took := time.Since(began)
		assert.True(t, took <= 0, "the others waited for %s", took)
		assert.LessOrEqual(t, requests.Load(), int64(burst+burst/2), "requests at once")
		loud.Wait()
	})
}

// The service accounts of a namespace cause requests as one user: who may edit it makes as many as they like.
func TestAccountsOfANamespaceWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, requests := newReviewer(t)
		var asking sync.WaitGroup
		for i := range 300 {
			u := &user.DefaultInfo{Name: fmt.Sprintf("system:serviceaccount:team-a:%d", i)}
			asking.Go(func() { _, _ = r.MayRelease(t.Context(), u, access.Get, "") })
		}
		synctest.Wait()
		assert.LessOrEqual(t, requests.Load(), int64(burst), "requests at once")
		asking.Wait()
	})
}

// The metrics are for users who may read them, with tokens of any audience, and an address that tries many delays no other.
func TestProtect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, requests := newAPI(t)
		page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
		h, err := Protect(config, slog.New(slog.DiscardHandler), page)
		require.NoError(t, err)
		ask := func(address, authorization string) int {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
			r.RemoteAddr = address + ":1234"
			r.Header.Set("Authorization", authorization)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		for name, tt := range map[string]struct {
			authorization string
			want          int
		}{
			"no token":         {"", http.StatusUnauthorized},
			"no bearer":        {"Basic YTpi", http.StatusUnauthorized},
			"invalid":          {"Bearer 0123456789abcdef", http.StatusUnauthorized},
			"without audience": {"Bearer " + tokenOf(`{"sub":"ada"}`), http.StatusTeapot},
			"not permitted":    {"Bearer " + tokenOf(`{"sub":"bob"}`), http.StatusForbidden},
		} {
			assert.Equal(t, tt.want, ask("192.0.2.1", tt.authorization), "%s: code", name)
		}
		before := requests.Load()
		ask("192.0.2.1", "Bearer 0123456789abcdef")
		assert.Equal(t, before, requests.Load(), "a token that was refused is reviewed again at once")
		var loud sync.WaitGroup
		for i := range 300 {
			loud.Go(func() { ask("192.0.2.1", fmt.Sprint("Bearer ", i)) })
		}
		synctest.Wait()
		began := time.Now()
		got := ask("192.0.2.2", "Bearer "+tokenOf(`{"sub":"ada","iss":"x"}`))
		assert.True(t, got == http.StatusTeapot && time.Since(began) <= 0, "another address: code %d after %s", got, time.Since(began))
		loud.Wait()
	})
}

// Requests that can't be reviewed do not fill the log.
func TestFailedReviewsAreSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config, _ := newAPI(t)
		config.Transport = fake.CreateHTTPClient(func(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }).Transport
		var logs text.Buffer
		h, err := Protect(config, slog.New(slog.NewTextHandler(&logs, nil)), http.NotFoundHandler())
		require.NoError(t, err)
		began := time.Now()
		var asking sync.WaitGroup
		for i := range 50 {
			asking.Go(func() {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
				r.Header.Set("Authorization", fmt.Sprint("Bearer ", i))
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				assert.Equal(t, http.StatusServiceUnavailable, w.Code, "code")
			})
		}
		asking.Wait()
		lines := strings.Count(logs.String(), "refused request")
		most := 1 + int(time.Since(began)/time.Second)
		assert.True(t, lines != 0 && lines <= most, "%d lines of 50 requests, want 1 to %d", lines, most)
	})
}
