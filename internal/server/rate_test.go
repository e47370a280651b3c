// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/await"
	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/tlstest"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// token returns a token whose subject is a user. It is not signed.
func token(user, audience string, expires time.Time) string {
	claims := fmt.Sprintf(`{"sub":%q,"aud":[%q],"exp":%d}`, user, audience, expires.Unix())
	return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
}

// subjectOf returns the user of a token.
func subjectOf(token string) string {
	var claims struct{ Sub string }
	raw, _ := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	_ = json.Unmarshal(raw, &claims)
	return claims.Sub
}

// generous returns a reviewer to whom tokens are valid, whose users may do everything, except for those of "forged".
func generous(t *testing.T) *review.Reviewer {
	t.Helper()
	r, _ := counting(t)
	return r
}

// counting is generous, and counts the reviews of tokens.
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
		_ = json.NewEncoder(w).Encode(authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}})
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
	s := start(t, newDriver(), server.Options{
		Listen: "127.0.0.1:0", TLSCert: cert.Cert, TLSKey: cert.Key, Reviewer: generous(t), UserQPS: 1,
	})
	as := func(user string) *plugin.Client {
		path := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(path, []byte(token(user, review.Audience, time.Now().Add(time.Hour))), 0o600))
		return dial(t, s.Addr(), plugin.WithCA(ca.File), plugin.WithTokenFile(path)) // the first call
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
