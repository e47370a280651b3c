// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"net/http"

	"github.com/lockstep-rollouts/lockstep/test/audit"
	"github.com/lockstep-rollouts/lockstep/test/driver"
)

// writes returns the successful writes of drivers in this namespace so far, without events, from the API server's audit log.
func (e *env) writes() []string {
	e.t.Helper()
	var found []string
	for _, r := range audit.Between(e.t, e.cluster.AuditLog(), "", audit.Mark(e.t, e.kube, e.namespace), e.namespace) {
		o := r.ObjectRef
		if r.IsWrite() && r.User.Username == driver.User && o.Namespace == e.namespace && o.Resource != "events" && r.ResponseStatus.Code < http.StatusBadRequest {
			found = append(found, r.Verb+" "+o.Resource+"/"+o.Name)
		}
	}
	return found
}
