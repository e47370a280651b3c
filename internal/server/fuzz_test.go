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
	"google.golang.org/grpc/metadata"
)

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
