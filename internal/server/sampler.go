// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// sampleInterval is how often calls of one method that end with one code are logged.
const sampleInterval = time.Second

// sampler logs one of many calls that fail alike.
type sampler struct {
	logger *slog.Logger

	mu    sync.Mutex
	kinds map[failure]*sample
}

// failure is a kind of failed calls. There are as many as methods and codes.
type failure struct {
	method string
	code   codes.Code
}

type sample struct {
	logged  time.Time
	omitted int
}

func newSampler(logger *slog.Logger) *sampler {
	return &sampler{logger: logger, kinds: map[failure]*sample{}}
}

// take reports whether to log a call, and how many were left out since the last one.
func (s *sampler) take(kind failure) (omitted int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.kinds[kind]
	if last == nil {
		last = &sample{}
		s.kinds[kind] = last
	}
	if time.Since(last.logged) < sampleInterval {
		last.omitted++
		return 0, false
	}
	omitted = last.omitted
	*last = sample{logged: time.Now()}
	return omitted, true
}

// refused logs a call that is refused by its headers.
func (s *sampler) refused(ctx context.Context, method string, err error) {
	if _, known := verbs[method]; !known {
		method = "unknown"
	}
	kind := failure{method, status.Code(err)}
	if omitted, ok := s.take(kind); ok {
		s.logger.WarnContext(ctx, "refused call", "method", method, "code", kind.code.String(),
			"error", status.Convert(err).Message(), "omitted", omitted)
	}
}
