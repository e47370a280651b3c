// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/vishvananda/netlink"
)

// outer runs this program again in new namespaces and returns its exit code. An error means that they could not be created and
// nothing ran.
func outer(c config) (int, error) {
	current, err := namespace()
	if err != nil {
		return 0, err
	}
	as := invocation{Outer: current}
	attributes := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if c.node {
		if err := NodePossible(); err != nil {
			return 0, err
		}
		as.Role, as.Cgroup = roleInit, fmt.Sprintf("lockstep-%d", os.Getpid())
		attributes.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWIPC
		removed, err := startGuard(as)
		if err != nil {
			return 0, err
		}
		defer removed()
	} else if os.Geteuid() != 0 {
		// An unprivileged user may create a network namespace in its own user namespace.
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return reexec(as, attributes)
}

// again returns a command that runs this program again.
func again(as invocation) (*exec.Cmd, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	value, err := json.Marshal(as)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"="+string(value))
	return cmd, nil
}

// reexec runs this program again, passes signals on, and returns its exit code.
func reexec(as invocation, attributes *syscall.SysProcAttr) (int, error) {
	cmd, err := again(as)
	if err != nil {
		return 0, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// Ctrl-C in a terminal reaches this process only, which passes it on once.
	attributes.Setpgid, attributes.Pdeathsig = true, syscall.SIGKILL
	cmd.SysProcAttr = attributes

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	// The kernel kills the child when the thread that started it ends, not only when the process does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start a process in new namespaces: %w", err)
	}
	done := make(chan struct{})
	go forward(signals, cmd.Process, done)
	defer close(done)
	return reap(cmd.Process.Pid)
}

// reap waits for a child and returns its exit code, or 128 plus the signal that ended it, as a shell does. The first process of a
// process namespace is the parent of every orphan, and reaps those meanwhile.
func reap(pid int) (int, error) {
	which := pid
	if os.Getpid() == 1 {
		which = -1
	}
	for {
		var status syscall.WaitStatus
		switch exited, err := syscall.Wait4(which, &status, 0, nil); {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, fmt.Errorf("wait for process %d: %w", pid, err)
		case exited == pid && status.Signaled():
			return 128 + int(status.Signal()), nil
		case exited == pid:
			return status.ExitStatus(), nil
		}
	}
}

// namespace identifies the network namespace that this process is in.
func namespace() (string, error) { return os.Readlink("/proc/self/ns/net") }

func forward(signals <-chan os.Signal, to *os.Process, done <-chan struct{}) {
	for {
		select {
		case s := <-signals:
			_ = to.Signal(s)
		case <-done:
			return
		}
	}
}

// configure brings lo up, routes the local ranges to it, and creates an interface with the addresses and the default route.
func configure(local []netip.Prefix, addresses []netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	for _, prefix := range local {
		route := &netlink.Route{
			LinkIndex: lo.Attrs().Index, Dst: netlink.NewIPNet(prefix.Addr().AsSlice()), Scope: netlink.SCOPE_HOST,
			Table: syscall.RT_TABLE_LOCAL, Type: syscall.RTN_LOCAL,
		}
		route.Dst.Mask = net.CIDRMask(prefix.Bits(), 32)
		if err := netlink.RouteAdd(route); err != nil {
			return fmt.Errorf("add local route %s: %w", prefix, err)
		}
	}
	if len(addresses) == 0 {
		return nil
	}
	return addInterface(addresses)
}

// addInterface creates one end of a virtual cable, whose other end exists only to give it a carrier.
func addInterface(addresses []netip.Addr) error {
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "node"}, PeerName: "peer"}
	if err := netlink.LinkAdd(link); err != nil {
		return fmt.Errorf("add a veth interface: %w", err)
	}
	for _, name := range []string{"peer", "node"} {
		end, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find interface %s: %w", name, err)
		}
		if err := netlink.LinkSetUp(end); err != nil {
			return fmt.Errorf("bring interface %s up: %w", name, err)
		}
	}
	for _, address := range addresses {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: netlink.NewIPNet(address.AsSlice())}); err != nil {
			return fmt.Errorf("add address %s: %w", address, err)
		}
	}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{
		IP: net.IPv4zero, Mask: net.CIDRMask(0, 32),
	}}); err != nil {
		return fmt.Errorf("add the default route: %w", err)
	}
	return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}
