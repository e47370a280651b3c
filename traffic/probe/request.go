// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	// headerLimit bounds the headers of an answer.
	headerLimit = 64 << 10
	// causeLimit bounds how much of a foreign error is shown: some quote what the leader sent.
	causeLimit = 200
)

// request is what a leader is asked.
type request struct {
	endpoint Endpoint
	body     string // empty: a GET
	accept   string
	timeout  time.Duration
}

func (r request) method() string {
	if r.body == "" {
		return http.MethodGet
	}
	return http.MethodPost
}

// String names the request for people, without its body and query.
func (r request) String() string { return r.method() + " " + r.endpoint.String() }

// newTransport returns a transport for pods. It leaves no connection open, since one would keep alive a server that is
// to end and hide that it refuses new ones, and it knows no proxy, since pods are reached directly.
func newTransport() *http.Transport {
	return &http.Transport{
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: headerLimit,
	}
}

func newClient(transport http.RoundTripper) *http.Client {
	return &http.Client{
		Transport: transport,
		// A redirect leads elsewhere than to the leader that is asked.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// ask makes one request and has read take the body of an answer in the 200s, all within the request's timeout. The error
// says what came instead, without naming leader and request.
func (p *Prober) ask(ctx context.Context, l Leader, r request, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	req, err := r.build(ctx, l)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return explain(ctx, err, r, "no answer")
	}
	defer func() { _ = resp.Body.Close() }() // it was read as far as anybody wants to
	if resp.StatusCode/100 != 2 {
		return statusError(resp.StatusCode)
	}
	if err := read(resp.Body); err != nil {
		return explain(ctx, err, r, "the answer began but did not end")
	}
	return nil
}

func (r request) build(ctx context.Context, l Leader) (*http.Request, error) {
	target, err := r.url(l)
	if err != nil {
		return nil, err
	}
	var body io.Reader
	if r.body != "" {
		body = strings.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(ctx, r.method(), target, body)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", plain(err))
	}
	req.Header.Set("User-Agent", "lockstep")
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.accept != "" {
		req.Header.Set("Accept", r.accept)
	}
	return req, nil
}

// url takes only IP addresses: a name could be anybody's.
func (r request) url(l Leader) (string, error) {
	if l.Address == "" {
		return "", &goneError{text: "the pod has no address, so no request has reached it"}
	}
	ip, err := netip.ParseAddr(l.Address)
	if err != nil {
		return "", fmt.Errorf("the pod's address %q is no IP address", l.Address)
	}
	u, err := url.ParseRequestURI(r.endpoint.Path)
	if err != nil {
		return "", fmt.Errorf("the path of %s can't be asked: %w", r.endpoint, plain(err))
	}
	u.Scheme, u.Host = "http", netip.AddrPortFrom(ip.WithZone("").Unmap(), r.endpoint.Port).String()
	return u.String(), nil
}

// statusError is an answer that is not in the 200s.
type statusError int

// Error says what was answered and, where it is clear, what to do.
func (code statusError) Error() string {
	said := strings.TrimSpace(fmt.Sprintf("answered %d %s", int(code), http.StatusText(int(code))))
	switch {
	case code/100 == 3:
		return said + ", and redirects are not followed: name the path that it leads to"
	case code == http.StatusNotFound:
		return said + ": correct the path or the port in the policy"
	default:
		return said
	}
}

// goneError is a leader to which nobody can connect.
type goneError struct {
	text  string
	cause error
}

func (e *goneError) Error() string { return e.text }

func (e *goneError) Unwrap() error { return e.cause }

// gone says that err means that nobody serves requests at the address. A network that this host can't reach says nothing
// about the leader and is none of these.
func gone(err error) bool {
	var g *goneError
	return errors.As(err, &g)
}

// explain turns an error of the request into a sentence. late is what did not happen if the timeout ended it.
func explain(ctx context.Context, err error, r request, late string) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%s within %s", late, r.timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return &goneError{text: fmt.Sprintf("refused the connection: nothing listens on port %d", r.endpoint.Port), cause: err}
	case errors.Is(err, syscall.EHOSTUNREACH):
		return &goneError{text: "no route to the pod: its address is not in use", cause: err}
	case errors.Is(err, syscall.ENETUNREACH):
		return errors.New("the driver's host has no route to the pod's network: check where the driver runs")
	default:
		return plain(err)
	}
}

// plain takes the URL, which may hold secrets, off an error of net/http, and shortens it.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if text := err.Error(); len(text) > causeLimit {
		return errors.New(strings.ToValidUTF8(text[:causeLimit], "") + " ...")
	}
	return err
}
