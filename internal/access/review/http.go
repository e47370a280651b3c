// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package review

import (
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/rest"
)

// Protect wraps a handler for users who may get the path of a request. Reviews are bounded as those of calls are, apart from them: readers
// of metrics and callers do not delay each other. A token is one for the API server, as Prometheus has it, not for [Audience].
func Protect(config *rest.Config, logger *slog.Logger, next http.Handler) (http.Handler, error) {
	r, err := New(config)
	if err != nil {
		return nil, err
	}
	r.audience = ""
	// Strangers cause as many failures as they like.
	logged := &rate.Sometimes{Interval: time.Second}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		code, err := r.authorizeRequest(req)
		switch {
		case err != nil:
			logged.Do(func() { logger.Warn("refused request", "path", req.URL.Path, "error", err) })
			http.Error(w, "the caller can't be reviewed: try again", http.StatusServiceUnavailable)
		case code != http.StatusOK:
			http.Error(w, http.StatusText(code), code)
		default:
			next.ServeHTTP(w, req)
		}
	}), nil
}

// authorizeRequest returns 200 for a user who may make the request, and otherwise the code to answer.
func (r *Reviewer) authorizeRequest(req *http.Request) (code int, err error) {
	scheme, token, _ := strings.Cut(req.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") || token == "" {
		return http.StatusUnauthorized, nil
	}
	source, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil {
		source = req.RemoteAddr
	}
	u, err := r.User(req.Context(), source, token)
	switch {
	case err != nil:
		return 0, err
	case u == nil:
		return http.StatusUnauthorized, nil
	}
	allowed, err := r.authorize(req.Context(), authorizer.AttributesRecord{User: u, Verb: strings.ToLower(req.Method), Path: req.URL.Path})
	if !allowed {
		return http.StatusForbidden, err
	}
	return http.StatusOK, nil
}
