// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package endpoint parses the addresses on which a driver is served and dialled. It is the one place that decides which are
// local: all others need mutual TLS. [Files] caches certificates and tokens, which are renewed while a process runs.
package endpoint

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// Endpoint is a parsed address.
type Endpoint struct {
	// Network is "unix" or "tcp".
	Network string
	// Address is an absolute path, or "host:port".
	Address string
}

// Parse parses "unix:///path", "host:port" or "dns:///host:port". It resolves no name.
func Parse(address string) (Endpoint, error) {
	if path, ok := strings.CutPrefix(address, "unix://"); ok {
		return parseUnix(address, path)
	}
	hostPort := strings.TrimPrefix(address, "dns:///")
	if strings.Contains(hostPort, "/") {
		return Endpoint{}, fmt.Errorf("address %q: want unix:///path, host:port or dns:///host:port", address)
	}
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return Endpoint{}, fmt.Errorf("address %q: want unix:///path, host:port or dns:///host:port: %w", address, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return Endpoint{}, fmt.Errorf("address %q: port %q is not a number from 0 to 65535", address, port)
	}
	return Endpoint{Network: "tcp", Address: net.JoinHostPort(host, port)}, nil
}

func parseUnix(address, path string) (Endpoint, error) {
	if !filepath.IsAbs(path) {
		return Endpoint{}, fmt.Errorf("address %q: want an absolute path after unix://", address)
	}
	return Endpoint{Network: "unix", Address: filepath.Clean(path)}, nil
}

// Local reports whether only this machine can reach the endpoint: a unix socket, a loopback IP, or the name localhost
// (which RFC 6761 reserves for loopback). Any other name is not local, whatever it resolves to.
func (e Endpoint) Local() bool {
	if e.Network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(e.Address)
	if err != nil {
		return false
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	// A loopback address of IPv4 may be written as one of IPv6.
	return err == nil && ip.Unmap().IsLoopback()
}

// Target returns the endpoint in the form of gRPC's resolvers.
func (e Endpoint) Target() string {
	if e.Network == "unix" {
		return "unix://" + e.Address
	}
	return "dns:///" + e.Address
}

// String returns an address that Parse accepts.
func (e Endpoint) String() string {
	if e.Network == "unix" {
		return "unix://" + e.Address
	}
	return e.Address
}
