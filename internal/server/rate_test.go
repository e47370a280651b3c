// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/internal/server"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
	"github.com/lockstep-rollouts/lockstep/test/await"
	"github.com/lockstep-rollouts/lockstep/test/tlstest"
)

// generous returns a reviewer to whom each token is the name of a user, who may do everything.
func generous(t *testing.T) *review.Reviewer {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if strings.HasSuffix(r.URL.Path, "/tokenreviews") {
			var question authenticationv1.TokenReview
			_ = json.NewDecoder(r.Body).Decode(&question)
			question.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: question.Spec.Audiences, User: authenticationv1.UserInfo{Username: question.Spec.Token},
			}
			_ = json.NewEncoder(w).Encode(question)
			return
		}
		_ = json.NewEncoder(w).Encode(authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}})
	}))
	t.Cleanup(api.Close)
	r, err := review.New(&rest.Config{Host: api.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return r
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
		if err := os.WriteFile(path, []byte(user), 0o600); err != nil {
			t.Fatal(err)
		}
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
	if err := look(as("calm")); err != nil {
		t.Errorf("another user: %v", err)
	}
	await.True(t, "the user may call again", func() bool { return look(eager) == nil })
}
