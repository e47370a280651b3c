// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// audited is one request that the API server has answered.
type audited struct {
	Stage, Verb string
	User        struct{ Username string }
	// ResponseStatus has the HTTP status code.
	ResponseStatus struct{ Code int }
	ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
}

func (a audited) String() string { return a.Verb + " " + a.ObjectRef.Resource + "/" + a.ObjectRef.Name }

// writes are the writes of drivers in this namespace that succeeded so far, events aside, as the API server's audit log has them. The
// log is read up to a request of our own, so that nothing that came before is missing.
func (e *env) writes() []string {
	e.t.Helper()
	marker := "marker-" + rand.String(10)
	_, _ = e.kube.CoreV1().ConfigMaps(e.namespace).Get(e.t.Context(), marker, metav1.GetOptions{})
	var found []string
	e.eventually("the audit log has the marker", func(context.Context) error {
		found = nil
		raw, err := os.ReadFile(e.cluster.AuditLog())
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			if !bytes.Contains(lines.Bytes(), []byte(e.namespace)) {
				continue
			}
			var a audited
			if json.Unmarshal(lines.Bytes(), &a) != nil || a.Stage != "ResponseComplete" || a.ObjectRef.Namespace != e.namespace {
				continue
			}
			if a.ObjectRef.Name == marker {
				return nil
			}
			switch a.Verb {
			case "get", "list", "watch":
				continue
			}
			if a.User.Username == driver.User && a.ObjectRef.Resource != "events" && a.ResponseStatus.Code < http.StatusBadRequest {
				found = append(found, a.String())
			}
		}
		return errors.New("it has not")
	})
	return found
}
