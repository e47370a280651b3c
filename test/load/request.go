// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"bytes"
	"cmp"
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

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
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

// tokensPerSecond is the rate at which package modelserver streams.
const tokensPerSecond = 5

// stream sends a completion and reads the whole stream. One that ends before its last event was cut.
func (g *Generator) stream(ctx context.Context, r request) (podanswer.Answer, failure) {
	var answer podanswer.Answer
	tokens := max(1, int(r.duration.Seconds()*tokensPerSecond))
	query, err := g.build(ctx, r, fmt.Sprintf(`{"model": "test", "prompt": "hello", "stream": true, "max_tokens": %d}`, tokens))
	if err != nil {
		return answer, failure{failedRequest, err.Error()}
	}
	begin := time.Now()
	response, err := g.client.Do(query)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			return answer, failure{failedTimeout, err.Error()}
		}
		return answer, failure{failedRequest, err.Error()}
	}
	defer func() { _ = response.Body.Close() }()
	if json.Unmarshal([]byte(response.Header.Get(podanswer.Header)), &answer) != nil {
		body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return podanswer.Answer{}, failure{failedGateway, fmt.Sprintf("%s: %s", response.Status, body)}
	}
	if answer.Violation != "" {
		return answer, failure{string(answer.Violation), fmt.Sprintf("%s %s", answer.Pod, answer.Detail)}
	}
	if response.StatusCode != http.StatusOK {
		return answer, failure{failedGateway, response.Status}
	}
	events, last := 0, ""
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if event, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			events++
			last = event
		}
	}
	if last != podanswer.Done || events != tokens+1 {
		return answer, failure{string(podanswer.Cut), fmt.Sprintf("%s sent %d of %d tokens in %s: %v", answer.Pod, events, tokens,
			time.Since(begin).Round(time.Millisecond), lines.Err())}
	}
	return answer, failure{}
}

// connect returns the connection of all calls. It panics for an invalid address.
func connect(o Options) *grpc.ClientConn {
	u, err := url.Parse(o.URL)
	if err != nil {
		panic(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithAuthority(cmp.Or(o.Host, u.Host)), grpc.WithDisableRetry(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return conn
}

// call sends a request over gRPC.
func (g *Generator) call(ctx context.Context, r request) (podanswer.Answer, failure) {
	duration := ""
	if r.duration > 0 {
		duration = r.duration.String()
	}
	if r.match {
		for name, values := range g.options.Match {
			for _, value := range values {
				ctx = metadata.AppendToOutgoingContext(ctx, strings.ToLower(name), value)
			}
		}
	}
	var answer podanswer.Answer
	reply := &wrapperspb.StringValue{}
	err := g.conn.Invoke(ctx, podserver.Method, wrapperspb.String(duration), reply)
	text := reply.GetValue()
	if err != nil {
		text = status.Convert(err).Message()
	}
	if json.Unmarshal([]byte(text), &answer) == nil && (answer.Pod != "" || answer.Violation != "") {
		if answer.Violation != "" {
			return answer, failure{string(answer.Violation), fmt.Sprintf("%s %s", answer.Pod, answer.Detail)}
		}
		return answer, failure{}
	}
	switch {
	case status.Code(err) == codes.DeadlineExceeded:
		return podanswer.Answer{}, failure{failedTimeout, err.Error()}
	case err != nil:
		return podanswer.Answer{}, failure{failedGateway, err.Error()}
	default:
		return podanswer.Answer{}, failure{failedGateway, "not the answer of a pod: " + text}
	}
}
