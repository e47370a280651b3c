// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-rollouts/lockstep/internal/access"
	"github.com/lockstep-rollouts/lockstep/plugin/drivererr"
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
