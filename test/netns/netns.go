// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
)

// insideEnv marks the inner processes. Its value is an invocation.
const insideEnv = "LOCKSTEP_NETNS_INSIDE"

// invocation is what the outer process tells the inner ones.
type invocation struct {
	// Outer is the outer process's namespace.
	Outer string
	// Role of the process. The default is roleRun.
	Role string `json:",omitempty"`
	// Cgroup is the name of the cgroup of a node.
	Cgroup string `json:",omitempty"`
}

const (
	roleRun = ""
	// roleInit is the first process of a process namespace.
	roleInit = "init"
	// roleGuard removes the cgroups after all others have ended.
	roleGuard = "guard"
)

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
	return main(prepare, run, config{local: local})
}

// MainOnNode is [Main] for a program that runs containers. The namespace has an interface with the addresses, which also carries the
// default route; packets are forwarded. Processes, mounts and cgroups are the program's own, /run and /var/log are empty, and when the
// program ends, or is killed, all of them are gone. It needs root and version 1 of cgroups, and says what is missing.
func MainOnNode(prepare func() error, run func() int, addresses ...netip.Addr) int {
	return main(prepare, run, config{addresses: addresses, node: true})
}

type config struct {
	local     []string
	addresses []netip.Addr
	node      bool
}

func main(prepare func() error, run func() int, c config) int {
	if given, inside := os.LookupEnv(insideEnv); inside {
		// Child processes may call Main themselves.
		_ = os.Unsetenv(insideEnv)
		var as invocation
		if err := json.Unmarshal([]byte(given), &as); err != nil {
			return failed("read "+insideEnv, err)
		}
		return inner(run, c, as)
	}
	if prepare != nil {
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "netns: prepare:", err)
			return exitPrepare
		}
	}
	code, err := outer(c)
	if err == nil {
		return code
	}
	if c.node {
		return failed("this machine can't run a node", err)
	}
	failed("can't create a network namespace on this machine", err)
	fmt.Fprintln(os.Stderr, "netns: run as root (in a container: with CAP_SYS_ADMIN), or allow user namespaces"+
		" (sysctl kernel.unprivileged_userns_clone, user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns)")
	return exitNamespace
}

func failed(what string, err error) int {
	fmt.Fprintf(os.Stderr, "netns: %s: %v\n", what, err)
	return exitNamespace
}

func inner(run func() int, c config, as invocation) int {
	switch as.Role {
	case roleGuard:
		return guard(as)
	case roleInit:
		if err := setUp(as.Outer, c); err != nil {
			return failed("set up the network namespace", err)
		}
		return initProcess(as)
	}
	prepare := func() error { return setUp(as.Outer, c) }
	if c.node {
		prepare = mountNode
	}
	if err := prepare(); err != nil {
		return failed("set up the namespace", err)
	}
	onNode = c.node
	return run()
}

var onNode bool

// OnNode reports whether this process runs in [MainOnNode].
func OnNode() bool { return onNode }

// setUp configures the network namespace, unless it is the outer one.
func setUp(outer string, c config) error {
	if current, err := namespace(); err != nil || current == outer || outer == "" {
		return fmt.Errorf("still in the network namespace %q: %w", outer, errors.Join(err, errors.ErrUnsupported))
	}
	ranges := make([]netip.Prefix, 0, len(c.local))
	for _, cidr := range c.local {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("local range: %w", err)
		}
		if !prefix.Addr().Is4() {
			return fmt.Errorf("local range %s: %w", cidr, errors.ErrUnsupported)
		}
		ranges = append(ranges, prefix.Masked())
	}
	return configure(ranges, c.addresses)
}
