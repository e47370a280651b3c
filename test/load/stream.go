// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

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
