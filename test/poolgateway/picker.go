// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package poolgateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// endpointHeader is the request header in which a picker returns its choice.
const endpointHeader = "x-gateway-destination-endpoint"

// picked is a request for which a picker has chosen an endpoint. The picker counts the request until its response has ended.
type picked struct {
	stream   extproc.ExternalProcessor_ProcessClient
	endpoint string
	body     []byte // as the picker wants it sent
}

// pick has a picker choose the endpoint of a request. It waits for the connection: the Service may be known before its endpoints.
func pick(ctx context.Context, connection *grpc.ClientConn, r *http.Request, body []byte) (*picked, error) {
	stream, err := extproc.NewExternalProcessorClient(connection).Process(ctx, grpc.WaitForReady(true))
	if err != nil {
		return nil, err
	}
	headers := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		header(":method", r.Method), header(":path", r.URL.RequestURI()), header(":authority", r.Host),
		header("content-type", r.Header.Get("Content-Type")),
	}}
	for _, message := range []*extproc.ProcessingRequest{
		{Request: &extproc.ProcessingRequest_RequestHeaders{RequestHeaders: &extproc.HttpHeaders{Headers: headers}}},
		{Request: &extproc.ProcessingRequest_RequestBody{RequestBody: &extproc.HttpBody{Body: body, EndOfStream: true}}},
	} {
		if err := stream.Send(message); err != nil && !errors.Is(err, io.EOF) { // Recv returns the cause
			return nil, err
		}
	}
	p := &picked{stream: stream}
	for {
		answer, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if refused := answer.GetImmediateResponse(); refused != nil {
			return nil, fmt.Errorf("it answers %s: %s", refused.GetStatus().GetCode(), refused.GetBody())
		}
		for _, set := range answer.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
			if strings.EqualFold(set.GetHeader().GetKey(), endpointHeader) {
				p.endpoint = string(set.GetHeader().GetRawValue())
			}
		}
		part := answer.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		p.body = append(p.body, part.GetBody()...)
		if part.GetEndOfStream() {
			break
		}
	}
	if p.endpoint == "" {
		return nil, errors.New("it chose no endpoint")
	}
	return p, nil
}

// responds reports the response of the endpoint to the picker.
func (p *picked) responds(response *http.Response) error {
	headers := &corev3.HeaderMap{Headers: []*corev3.HeaderValue{
		header("status", strconv.Itoa(response.StatusCode)), header("content-type", response.Header.Get("Content-Type")),
	}}
	err := p.stream.Send(&extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extproc.HttpHeaders{Headers: headers}},
	})
	if err != nil {
		return fmt.Errorf("report the response to the endpoint picker: %w", err)
	}
	return nil
}

// ends reports the end of the response to the picker, and returns once it has been noticed.
func (p *picked) ends() error {
	err := p.stream.Send(&extproc.ProcessingRequest{
		Request: &extproc.ProcessingRequest_ResponseBody{ResponseBody: &extproc.HttpBody{EndOfStream: true}},
	})
	if err = errors.Join(err, p.stream.CloseSend()); err != nil {
		return fmt.Errorf("report the end of the response to the endpoint picker: %w", err)
	}
	for {
		if _, err := p.stream.Recv(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("await the end of the endpoint picker's stream: %w", err)
		}
	}
}

func header(key, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: key, RawValue: []byte(value)}
}
