// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/rest/fake"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/internal/access/review"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
	"github.com/lockstep-rollouts/lockstep/plugin/endpoint"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Each RPC of the contract needs a verb; those that change something need drive or adopt.
func TestVerbs(t *testing.T) {
	reads := map[string]bool{
		"CalculateBatchContext": true, "WatchBatchContext": true, "WatchWorkloads": true, "Plan": true, "Preflight": true,
		"ListRevisions": true, "VerifyWeight": true,
	}
	for _, desc := range []grpc.ServiceDesc{pb.WorkloadDriver_ServiceDesc, pb.TrafficRouter_ServiceDesc} {
		var names []string
		for _, m := range desc.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range desc.Streams {
			names = append(names, m.StreamName)
		}
		for _, name := range names {
			verb, known := verbs["/"+desc.ServiceName+"/"+name]
			switch {
			case !known:
				t.Errorf("%s has no verb: every call of it is refused", name)
			case name == "GetDriverInfo" && verb != anyUser, name != "GetDriverInfo" && reads[name] != (verb == access.Get):
				t.Errorf("%s needs %q", name, verb)
			}
		}
	}
}

func TestUserOfCertificate(t *testing.T) {
	now := time.Now()
	spiffe := func(id string) []*url.URL {
		u, err := url.Parse(id)
		require.NoError(t, err)
		return []*url.URL{u}
	}
	tests := map[string]struct {
		leaf   x509.Certificate
		user   string
		groups int
	}{
		"common name":           {x509.Certificate{Subject: pkix.Name{CommonName: "ada", Organization: []string{"sre"}}}, "ada", 2},
		"SPIFFE ID":             {x509.Certificate{URIs: spiffe("spiffe://example.org/ns/argo/sa/argo-rollouts")}, "spiffe://example.org/ns/argo/sa/argo-rollouts", 1},
		"SPIFFE ID of a server": {x509.Certificate{Subject: pkix.Name{CommonName: "system:admin"}, URIs: spiffe("spiffe://example.org/x")}, "spiffe://example.org/x", 1},
		"invalid SPIFFE ID":     {x509.Certificate{Subject: pkix.Name{CommonName: "ada"}, URIs: spiffe("spiffe://EXAMPLE/..")}, "", 0},
		"no name":               {x509.Certificate{}, "", 0},
		"a user of Kubernetes":  {x509.Certificate{Subject: pkix.Name{CommonName: "system:kube-scheduler"}}, "", 0},
		"a group of Kubernetes": {x509.Certificate{Subject: pkix.Name{CommonName: "ada", Organization: []string{"sre", "system:masters"}}}, "", 0},
		"expired":               {x509.Certificate{Subject: pkix.Name{CommonName: "ada"}, NotAfter: now.Add(-time.Minute)}, "", 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.leaf.NotAfter.IsZero() {
				tt.leaf.NotAfter = now.Add(time.Hour)
			}
			u, err := userOfCertificate(&tt.leaf, now)
			if tt.user == "" {
				require.Equal(t, pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED, drivererr.Reason(err), "user %v, %v; want UNAUTHENTICATED", u, err)
				return
			}
			assert.True(t, err == nil && u.GetName() == tt.user && len(u.GetGroups()) == tt.groups,
				"user %v, %v; want %s with %d groups", u, err, tt.user, tt.groups)
		})
	}
}

// Whatever a certificate of the client CA says, its bearer is none of Kubernetes' own users and in none of their groups.
func FuzzUserOfCertificate(f *testing.F) {
	f.Add("ada", "sre", "")
	f.Add("system:admin", "system:masters", "spiffe://example.org/ns/argo/sa/argo-rollouts")
	f.Add("", "", "spiffe://EXAMPLE/..")
	f.Fuzz(func(t *testing.T, name, organization, uri string) {
		leaf := &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{organization}}, NotAfter: time.Now().Add(time.Hour)}
		if u, err := url.Parse(uri); err == nil {
			leaf.URIs = []*url.URL{u}
		}
		u, err := userOfCertificate(leaf, time.Now())
		if err != nil {
			return
		}
		id := strings.HasPrefix(u.GetName(), "spiffe://")
		if id && !strings.HasPrefix(strings.ToLower(uri), "spiffe:") || u.GetName() == "" || strings.HasPrefix(u.GetName(), "system:") {
			t.Errorf("the user is %q", u.GetName())
		}
		if slices.ContainsFunc(u.GetGroups(), func(g string) bool { return strings.HasPrefix(g, "system:") && g != "system:authenticated" }) {
			t.Errorf("the groups are %q", u.GetGroups())
		}
	})
}

// However many unknown tokens an address sends, those that were valid before are reviewed again.
func TestUnknownTokensLeavePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.CreateHTTPClient(func(*http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{
				Authenticated: true, Audiences: []string{review.Audience}, User: authenticationv1.UserInfo{Username: "ada"},
			}})
			return w.Result(), nil
		}).Transport
		r, err := review.New(&rest.Config{Transport: api, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
		require.NoError(t, err)
		o := Options{Reviewer: r, Logger: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}
		a := o.authorization(endpoint.Endpoint{Network: "tcp"}, &connections{})
		tokenOf := func(name string) string {
			claims := fmt.Sprintf(`{"sub":%q,"aud":[%q],"exp":%d}`, name, review.Audience, time.Now().Add(time.Hour).Unix())
			return "eyJhbGciOiJSUzI1NiJ9." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
		}
		call := func(token string) error {
			ctx := peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+token))
			_, err := a.tap(ctx, &tap.Info{FullMethodName: pb.WorkloadDriver_Adopt_FullMethodName})
			return err
		}
		ada := tokenOf("ada")
		_, err = r.User(t.Context(), "192.0.2.1", ada)
		require.NoError(t, err)
		time.Sleep(time.Minute) //nolint:forbidigo // The bubble's clock.
		for i := range maxSourceReading {
			require.NoError(t, call(tokenOf(fmt.Sprint(i))))
		}
		assert.Error(t, call(tokenOf("more")), "one more unknown token")
		assert.NoError(t, call(ada), "a token that was valid before")
	})
}

// A token of the header of a call has no white space around it, and needs the scheme.
func FuzzBearerToken(f *testing.F) {
	f.Add("Bearer e30.e30.c2ln")
	f.Add("bearer  ")
	f.Add("Basic YTpi")
	f.Fuzz(func(t *testing.T, value string) {
		token := bearerToken(metadata.NewIncomingContext(context.Background(), metadata.Pairs("authorization", value)))
		scheme, _, _ := strings.Cut(value, " ")
		assert.False(t, token != strings.TrimSpace(token) || token != "" && !strings.EqualFold(scheme, "bearer"), "%q has the token %q", value, token)
	})
}
