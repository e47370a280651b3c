// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	type want struct {
		Endpoint Endpoint
		Local    bool
		Target   string
	}
	tests := []struct {
		name    string
		reason  string
		address string
		want    want
	}{
		{
			"unix", "a socket is reached by path only", "unix:///run/l.sock",
			want{Endpoint{"unix", "/run/l.sock"}, true, "unix:///run/l.sock"},
		},
		{
			"unix unclean", "one socket has one spelling", "unix:///run/../run/l.sock",
			want{Endpoint{"unix", "/run/l.sock"}, true, "unix:///run/l.sock"},
		},
		{
			"loopback v4", "127.0.0.0/8 stays on the machine", "127.0.0.9:1",
			want{Endpoint{"tcp", "127.0.0.9:1"}, true, "dns:///127.0.0.9:1"},
		},
		{
			"loopback v6", "::1 stays on the machine", "[::1]:1",
			want{Endpoint{"tcp", "[::1]:1"}, true, "dns:///[::1]:1"},
		},
		{
			"mapped loopback", "an IPv4 address in IPv6 clothes is the same address", "[::ffff:127.0.0.1]:1",
			want{Endpoint{"tcp", "[::ffff:127.0.0.1]:1"}, true, "dns:///[::ffff:127.0.0.1]:1"},
		},
		{
			"localhost", "reserved for loopback", "dns:///LocalHost:1",
			want{Endpoint{"tcp", "LocalHost:1"}, true, "dns:///LocalHost:1"},
		},
		{
			"all interfaces", "an empty host is every interface", ":1",
			want{Endpoint{"tcp", ":1"}, false, "dns:///:1"},
		},
		{
			"wildcard", "0.0.0.0 is every interface", "0.0.0.0:1",
			want{Endpoint{"tcp", "0.0.0.0:1"}, false, "dns:///0.0.0.0:1"},
		},
		{
			"lookalike", "a name that starts with localhost. can be any host", "localhost.example.com:1",
			want{Endpoint{"tcp", "localhost.example.com:1"}, false, "dns:///localhost.example.com:1"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Parse(tt.address)
			require.NoError(t, err, "%s: Parse(%q)", tt.reason, tt.address)
			got := want{Endpoint: e, Local: e.Local(), Target: e.Target()}
			assert.Empty(t, cmp.Diff(tt.want, got), "%s (-want +got)", tt.reason)
			if again, err := Parse(e.String()); err != nil || again != e {
				t.Errorf("Parse(%q) = %v, %v; want %v", e.String(), again, err, e)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct{ name, reason, address string }{
		{"empty", "nothing to listen on", ""},
		{"relative socket", "it would depend on the working directory", "unix://run/l.sock"},
		{"abstract socket", "it has no file permissions", "unix-abstract:l"},
		{"no port", "a port is never guessed", "127.0.0.1"},
		{"bad port", "it would fail later and less clearly", "127.0.0.1:http"},
		{"port range", "ports have 16 bits", "127.0.0.1:65536"},
		{"unknown scheme", "a typo must not become a host name", "https://x:1"},
		{"dns authority", "another name server is not supported", "dns://8.8.8.8/x:1"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Parse(tt.address)
			assert.Error(t, err, "Parse(%q) = %v, want an error: %s", tt.address, e, tt.reason)
		})
	}
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	write := func(text string, at time.Time) {
		t.Helper()
		require.NoError(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, at, at)))
	}
	reads := 0
	load := func() (string, error) {
		reads++
		raw, err := os.ReadFile(path)
		if string(raw) == "half" {
			return "", errors.New("half-written")
		}
		return string(raw), err
	}
	_, err := NewFiles(load, path)
	assert.Error(t, err, "a missing file is no error")
	begin := time.Now()
	write("one", begin)
	f, err := NewFiles(load, path)
	require.NoError(t, err)
	expect := func(want string, wantReads int) {
		t.Helper()
		reads = 0
		got := f.Get()
		assert.True(t, got == want && reads == wantReads, "%q after %d reads, want %q after %d", got, reads, want, wantReads)
	}
	expect("one", 0)
	write("half", begin.Add(time.Second))
	expect("one", 1)
	write("two", begin.Add(2*time.Second))
	expect("two", 1)
	expect("two", 0)
	require.NoError(t, os.Remove(path))
	expect("two", 1)
}
