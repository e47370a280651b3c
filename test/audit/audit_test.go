// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/kubernetes/fake"
)

func line(id, stage, verb, namespace, resource, name string) string {
	return fmt.Sprintf(`{"kind":"Event","auditID":%q,"stage":%q,"requestURI":"/api/%s","verb":%q,"user":{"username":"u"},`+
		`"objectRef":{"resource":%q,"namespace":%q,"name":%q},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.678901Z"}`+"\n",
		id, stage, name, verb, resource, namespace, name)
}

var log = line("1", "ResponseStarted", "watch", "a", "pods", "") +
	line("2", "ResponseComplete", "create", "b", "pods", "p") +
	line("1", "ResponseComplete", "watch", "a", "pods", "") +
	line("3", "ResponseComplete", "get", "", "", "healthz")

func names(events []Event) []string {
	all := []string{}
	for _, e := range events {
		all = append(all, e.String())
	}
	return all
}

func TestReadReturnsEachRequestOnce(t *testing.T) {
	for _, test := range []struct {
		name, log, containing string
		want                  []string
	}{
		{"whole", log, "", []string{"watch pods", "create pods", "get /api/healthz"}},
		{"one namespace", log, `"namespace":"b"`, []string{"create pods"}},
		{"unfinished last line", log + `{"auditID":"4","ve`, "", []string{"watch pods", "create pods", "get /api/healthz"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			events, err := Read(strings.NewReader(test.log), test.containing)
			require.NoError(t, err)
			assert.Empty(t, cmp.Diff(test.want, names(events)))
		})
	}
	_, err := Read(strings.NewReader("{\n"+log), "")
	assert.Error(t, err, "no error for an invalid line in the middle")
}

func TestBetween(t *testing.T) {
	kube := fake.NewClientset()
	from, to := Mark(t, kube, "a"), Mark(t, kube, "a")
	mark := func(name string) string { return line(name, "ResponseComplete", "get", "a", "configmaps", name) }
	path := filepath.Join(t.TempDir(), "audit.log")
	before, after := line("x", "ResponseComplete", "list", "a", "nodes", ""), line("y", "ResponseComplete", "delete", "a", "nodes", "n")
	require.NoError(t, os.WriteFile(path, []byte(before+mark(from)+log+mark(to)+after), 0o600))
	assert.Empty(t, cmp.Diff([]string{"watch pods", "create pods", "get /api/healthz"}, names(Between(t, path, from, to, ""))))
	got := names(Between(t, path, "", to, `"verb":"list"`))
	assert.True(t, cmp.Equal(got, []string{"list nodes"}), "from the start of the log: %v", got)
}
