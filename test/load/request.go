// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// failure is why a request was not served. Requests are counted by kind; the detail is an example.
type failure struct {
	kind, detail string
}

// Kinds of failures beside the violations of pods.
const (
	failedGateway = "gateway"
	failedTimeout = "timeout"
	failedRequest = "request"
)

// request is one request.
type request struct {
	duration time.Duration // 0 for a short one
	match    bool
}

// request returns the next request. It is random, because a gateway may use pods in turn: if every second request were long, one of
// two pods would get all of them. Every generator has the same seed.
func (o Options) request(dice *rand.Rand) request {
	var r request
	if o.LongEvery > 0 && dice.IntN(o.LongEvery) == 0 {
		r.duration = o.LongFor
	}
	if o.MatchEvery > 0 && dice.IntN(o.MatchEvery) == 0 {
		r.match = true
	}
	return r
}

// send sends a request and records its result. It completes also if the load ends.
func (g *Generator) send(ctx context.Context, r request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.duration+g.options.Timeout)
	defer cancel()
	p, begin := g.current()
	ready := 0
	if g.options.Ready != nil {
		ready = g.options.Ready()
	}
	ask := g.ask
	switch {
	case g.conn != nil:
		ask = g.call
	case g.options.Stream > 0:
		ask = g.stream
	}
	answer, problem := ask(ctx, r)
	outcome := record{begin: begin, match: r.match, failure: problem, terminating: answer.Terminating, ready: ready}
	if answer.Pod != "" {
		outcome.side = g.options.Side(answer)
	}
	g.add(p, outcome)
}

func (g *Generator) ask(ctx context.Context, r request) (podanswer.Answer, failure) {
	var answer podanswer.Answer
	query, err := g.build(ctx, r, `{"prompt": "hello"}`)
	if err != nil {
		return answer, failure{failedRequest, err.Error()}
	}
	response, err := g.client.Do(query)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return answer, failure{failedTimeout, err.Error()}
		}
		return answer, failure{failedRequest, err.Error()}
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
	if err != nil {
		return answer, failure{failedRequest, err.Error()}
	}
	if json.Unmarshal(body, &answer) != nil || answer.Pod == "" && answer.Violation == "" {
		return podanswer.Answer{}, failure{failedGateway, fmt.Sprintf("%s: %s", response.Status, bytes.TrimSpace(body))}
	}
	if answer.Violation != "" {
		return answer, failure{string(answer.Violation), fmt.Sprintf("%s %s", answer.Pod, answer.Detail)}
	}
	if response.StatusCode != http.StatusOK {
		return answer, failure{failedGateway, response.Status}
	}
	return answer, failure{}
}

func (g *Generator) build(ctx context.Context, r request, body string) (*http.Request, error) {
	address := g.options.URL
	if r.duration > 0 && g.options.Stream == 0 {
		address += "?" + url.Values{"duration": {r.duration.String()}}.Encode()
	}
	// Unlike a GET, a POST is not retried by clients and gateways.
	query, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	query.GetBody = nil
	query.Host = g.options.Host
	query.Header.Set("Content-Type", "application/json")
	if r.match {
		maps.Copy(query.Header, g.options.Match)
	}
	return query, nil
}
