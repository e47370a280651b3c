// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"
)

// insideEnv marks the inner process. Its value is when the outer process started it, and the outer process's namespace.
const insideEnv = "LOCKSTEP_NETNS_INSIDE"

// Exit codes for failures of this package. The program's own exit code is passed on, or 128 plus the number of the signal
// that ended it.
const (
	exitPrepare   = 3
	exitNamespace = 4
)

// Main runs the program again in a new network namespace, with the same arguments, and returns its exit code. In the
// namespace it calls run, with lo up and the local ranges (CIDRs) routed to it. The namespace has no other network, so
// prepare, which may be nil, runs before and outside. Programs that run starts are in the namespace, too.
//
// Signals are passed on. The inner process is killed when the outer process ends, however it ends.
func Main(prepare func() error, run func() int, local ...string) int {
	if started, inside := os.LookupEnv(insideEnv); inside {
		// Child processes may call Main themselves.
		_ = os.Unsetenv(insideEnv)
		at, outer, _ := strings.Cut(started, " ")
		if err := setUp(outer, local); err != nil {
			fmt.Fprintln(os.Stderr, "netns: set up the network namespace:", err)
			return exitNamespace
		}
		if at, err := time.Parse(time.RFC3339Nano, at); err == nil {
			setupTime = time.Since(at)
		}
		return run()
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "netns: prepare:", err)
			return exitPrepare
		}
	}
	code, err := reexec()
	if err != nil {
		fmt.Fprintln(os.Stderr, "netns: can't create a network namespace on this machine:", err)
		fmt.Fprintln(os.Stderr, "netns: run as root (in a container: with CAP_SYS_ADMIN), or allow user namespaces"+
			" (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")
		return exitNamespace
	}
	return code
}

var setupTime time.Duration

// SetupTime returns the time from the start of the inner process until the namespace was ready. It is 0 outside.
func SetupTime() time.Duration { return setupTime }

// setUp configures the namespace, unless it is the outer one.
func setUp(outer string, local []string) error {
	if current, err := namespace(); err != nil || current == outer || outer == "" {
		return fmt.Errorf("still in the network namespace %q: %w", outer, errors.Join(err, errors.ErrUnsupported))
	}
	ranges := make([]netip.Prefix, 0, len(local))
	for _, cidr := range local {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("local range: %w", err)
		}
		if !prefix.Addr().Is4() {
			return fmt.Errorf("local range %s: %w", cidr, errors.ErrUnsupported)
		}
		ranges = append(ranges, prefix.Masked())
	}
	return configure(ranges)
}
