// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/rest/fake"
)

// While the API server answers slowly, the requests of one source leave room to another one.
func TestSourcesLeaveRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun, end := make(chan any, 2*maxInFlight), make(chan struct{})
		config := LimitRequests(&rest.Config{})
		limited := config.WrapTransport(fake.CreateHTTPClient(func(r *http.Request) (*http.Response, error) {
			begun <- r.Context().Value(sourceKey{})
			<-end
			return &http.Response{Body: http.NoBody}, nil
		}).Transport)
		ask := func(source string) {
			r, err := http.NewRequestWithContext(WithSource(t.Context(), source), http.MethodPost, "https://api", http.NoBody)
			require.NoError(t, err)
			go func() {
				if answer, err := limited.RoundTrip(r); err == nil {
					_ = answer.Body.Close()
				}
			}()
		}
		for range maxInFlight + 10 {
			ask("loud")
		}
		synctest.Wait()
		assert.True(t, len(begun) > 0 && len(begun) < maxInFlight, "%d requests of one source at once", len(begun))
		for len(begun) > 0 {
			<-begun
		}
		ask("quiet")
		synctest.Wait()
		assert.True(t, len(begun) == 1 && <-begun == "quiet", "another source waits for the loud one")
		close(end)
	})
}

// The service accounts of a namespace count as one: who may edit it makes as many as they like.
func TestServiceAccountsCountTogether(t *testing.T) {
	for name, want := range map[string]string{
		"system:serviceaccount:team-a:default": "system:serviceaccounts:team-a",
		"system:serviceaccount:team-a:other":   "system:serviceaccounts:team-a",
		"system:serviceaccount:team-b:default": "system:serviceaccounts:team-b",
		"spiffe://mesh/ns/team-a/sa/default":   "spiffe://mesh/ns/team-a",
		"spiffe://mesh/ns/team-a/sa/other":     "spiffe://mesh/ns/team-a",
		"spiffe://mesh/host":                   "spiffe://mesh/host",
		"ada":                                  "ada",
	} {
		assert.Equal(t, want, AccountOf(&user.DefaultInfo{Name: name}), "%s counts for", name)
	}
}
