// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// poisonous is a transport that panics.
type poisonous struct{}

func (poisonous) RoundTrip(*http.Request) (*http.Response, error) { panic("a defect") }

// A panic in a probe is a failed probe of its leader.
func TestPoisonousLeader(t *testing.T) {
	p := &Prober{log: slog.New(slog.DiscardHandler), client: &http.Client{Transport: poisonous{}}}
	err := p.do(t.Context(), Leader{Name: "vllm-0", Address: "10.0.0.1"}, request{endpoint: Endpoint{Port: 8080, Path: "/"}, timeout: time.Second},
		func(io.Reader) error { return nil })
	assert.ErrorContains(t, err, "vllm-0", "error")
}
