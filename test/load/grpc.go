// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
	"github.com/lockstep-rollouts/lockstep/test/podserver"
)

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
