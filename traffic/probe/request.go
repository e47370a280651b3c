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

	"github.com/lockstep-rollouts/lockstep/plugin/informer/guard"
)

const (
	// headerLimit bounds the headers of a response.
	headerLimit = 64 << 10
	// causeLimit bounds the length of an error from net/http in messages: some quote the response.
	causeLimit = 200
)

// request is a request to a leader.
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

// String returns method and endpoint, for messages, without body and query.
func (r request) String() string { return r.method() + " " + r.endpoint.String() }

// newTransport returns a transport for pods. It keeps no connections, which would keep a terminating server alive and hide
// that it refuses new ones, and uses no proxy, since pods are reached directly.
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
		// A redirect may lead to another host than the leader.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// do makes one request and calls read with the body of a 2xx response, all within the request's timeout. The error does not
// name leader and request.
func (p *Prober) do(ctx context.Context, l Leader, r request, read func(io.Reader) error) (err error) {
	// A leader decides what the response is. A parser that panics on it must not end the driver.
	if panicked := guard.Call(p.log, "probe", l.String(), func() { err = p.ask(ctx, l, r, read) }); panicked != nil {
		return panicked
	}
	return err
}

func (p *Prober) ask(ctx context.Context, l Leader, r request, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	if err := p.refused(l); err != nil {
		return err
	}
	req, err := r.build(ctx, l)
	if err != nil {
		return err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return explainRequest(ctx, err, r, "no response")
	}
	defer func() { _ = resp.Body.Close() }() // the result is known already
	if resp.StatusCode/100 != 2 {
		return statusError(resp.StatusCode)
	}
	if err := read(resp.Body); err != nil {
		return explainRequest(ctx, err, r, "the response began but did not end")
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
		return nil, fmt.Errorf("build the request: %w", withoutURL(err))
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

// refused returns why the leader gets no request, nil if it may get one. Only who may write pods/status can forge a pod's
// address. But who may create a pod can have it run on the node's network, where kubelets and other programs trust local
// requests.
func (p *Prober) refused(l Leader) error {
	if l.HostNetwork && !p.hostNetwork {
		return errors.New("the pod is on its node's network (hostNetwork), where the driver makes no requests: " +
			"take the warm-up and the drain's metric out of the policy, or run the driver with --probe-host-network")
	}
	ip, err := netip.ParseAddr(l.Address)
	if err != nil {
		return nil //nolint:nilerr // url refuses it, with the cause
	}
	// An IPv4 address may be written as an IPv6 one, and must pass the same checks.
	if ip = ip.WithZone("").Unmap(); !ip.IsGlobalUnicast() && (!ip.IsLoopback() || !p.loopback) {
		return fmt.Errorf("the pod's address %s is not that of a pod: the driver makes no requests to "+
			"loopback, link-local, multicast and unspecified addresses", ip)
	}
	return nil
}

// url accepts only IP addresses: a host name could resolve to any host.
func (r request) url(l Leader) (string, error) {
	if l.Address == "" {
		return "", &unreachableError{text: "the pod has no address, so no request has reached it"}
	}
	ip, err := netip.ParseAddr(l.Address)
	if err != nil {
		return "", fmt.Errorf("the pod's address %q is not an IP address", l.Address)
	}
	u, err := url.ParseRequestURI(r.endpoint.Path)
	if err != nil {
		return "", fmt.Errorf("the path of %s is invalid: %w", r.endpoint, withoutURL(err))
	}
	u.Scheme, u.Host = "http", netip.AddrPortFrom(ip.WithZone("").Unmap(), r.endpoint.Port).String()
	return u.String(), nil
}

// statusError is the status code of a response that is not 2xx.
type statusError int

// Error returns the status and, where it is clear, the remedy.
func (code statusError) Error() string {
	status := strings.TrimSpace(fmt.Sprintf("answered %d %s", int(code), http.StatusText(int(code))))
	switch {
	case code/100 == 3:
		return status + ", and redirects are not followed: set the target's path in the policy"
	case code == http.StatusNotFound:
		return status + ": correct the path or the port in the policy"
	default:
		return status
	}
}

// unreachableError means that no server listens at the leader's address.
type unreachableError struct {
	text  string
	cause error
}

func (e *unreachableError) Error() string { return e.text }

func (e *unreachableError) Unwrap() error { return e.cause }

// isUnreachable reports whether err means that no server listens at the leader's address. An unreachable network does not:
// the leader may still serve requests.
func isUnreachable(err error) bool {
	var u *unreachableError
	return errors.As(err, &u)
}

// explainRequest returns a readable error of the request. late is what did not happen before the timeout.
func explainRequest(ctx context.Context, err error, r request, late string) error {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		// net/http wraps a timeout in different ways, so the context is asked.
		return fmt.Errorf("%s within %s", late, r.timeout)
	case errors.Is(err, syscall.ECONNREFUSED):
		return &unreachableError{text: fmt.Sprintf("refused the connection: nothing listens on port %d", r.endpoint.Port), cause: err}
	case errors.Is(err, syscall.EHOSTUNREACH):
		return &unreachableError{text: "no route to the pod: its address is not in use", cause: err}
	case errors.Is(err, syscall.ENETUNREACH):
		return errors.New("the driver's host has no route to the pod's network: check where the driver runs")
	default:
		return withoutURL(err)
	}
}

// withoutURL removes the URL, which may contain secrets, from an error of net/http, and shortens it.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	// The cut may be within a character.
	if text := err.Error(); len(text) > causeLimit {
		return errors.New(strings.ToValidUTF8(text[:causeLimit], "") + " ...")
	}
	return err
}
