// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

// reexec runs this program again in a new network namespace and returns its exit code. An error means that the namespace
// could not be created and nothing ran.
func reexec() (int, error) {
	attributes := &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET,
		// Ctrl-C in a terminal reaches this process only, which passes it on once.
		Setpgid:   true,
		Pdeathsig: syscall.SIGKILL,
	}
	if os.Geteuid() != 0 {
		// An unprivileged user may create a network namespace in its own user namespace.
		attributes.Cloneflags |= syscall.CLONE_NEWUSER
		attributes.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		attributes.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	path, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	outer, err := namespace()
	if err != nil {
		return 0, err
	}
	cmd := exec.Command(path, os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), insideEnv+"="+time.Now().Format(time.RFC3339Nano)+" "+outer)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = attributes

	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(signals)
	// The kernel kills the child when the thread that started it ends, not only when the process does.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start a process in a new network namespace: %w", err)
	}
	done := make(chan struct{})
	go forward(signals, cmd.Process, done)
	err = cmd.Wait()
	close(done)
	return exitCode(err), nil
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

// exitCode returns the exit code of the process, or 128 plus the signal that ended it, as a shell does.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 1
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return exit.ExitCode()
}

// configure does what `ip link set lo up` and `ip route add local RANGE dev lo` do.
func configure(local []netip.Prefix) error {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	socket, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", os.NewSyscallError("socket", err))
	}
	defer func() { _ = syscall.Close(socket) }()
	if err := request(socket, syscall.RTM_NEWLINK, 0, linkUp(lo.Index)); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	for _, prefix := range local {
		if err := request(socket, syscall.RTM_NEWROUTE, syscall.NLM_F_CREATE|syscall.NLM_F_EXCL, localRoute(prefix, lo.Index)); err != nil {
			return fmt.Errorf("add local route %s: %w", prefix, err)
		}
	}
	return nil
}

// linkUp returns the body of a message that sets IFF_UP (struct ifinfomsg).
func linkUp(index int) []byte {
	b := make([]byte, 0, syscall.SizeofIfInfomsg)
	b = append(b, syscall.AF_UNSPEC, 0)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, syscall.IFF_UP)
	return binary.NativeEndian.AppendUint32(b, syscall.IFF_UP)
}

// localRoute returns the body of a message that adds a route of type local (struct rtmsg, then attributes).
func localRoute(prefix netip.Prefix, index int) []byte {
	address := prefix.Addr().As4()
	b := []byte{
		syscall.AF_INET, byte(prefix.Bits()), 0, 0, // family, lengths of destination and source, type of service
		syscall.RT_TABLE_LOCAL, syscall.RTPROT_BOOT, syscall.RT_SCOPE_HOST, syscall.RTN_LOCAL,
		0, 0, 0, 0, // flags
	}
	b = attribute(b, syscall.RTA_DST, address[:])
	return attribute(b, syscall.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(index)))
}

// attribute appends a struct rtattr. All values have four bytes and need no padding.
func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(syscall.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	return append(b, value...)
}

// request sends one message to the kernel and waits for its answer.
func request(socket int, kind, flags uint16, body []byte) error {
	message := binary.NativeEndian.AppendUint32(nil, uint32(syscall.SizeofNlMsghdr+len(body)))
	message = binary.NativeEndian.AppendUint16(message, kind)
	message = binary.NativeEndian.AppendUint16(message, syscall.NLM_F_REQUEST|syscall.NLM_F_ACK|flags)
	message = append(message, make([]byte, 8)...) // sequence number and sender: one request at a time needs neither
	message = append(message, body...)
	if err := syscall.Sendto(socket, message, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, syscall.Getpagesize())
	n, _, err := syscall.Recvfrom(socket, answer, 0)
	if err != nil {
		return os.NewSyscallError("recvfrom", err)
	}
	messages, err := syscall.ParseNetlinkMessage(answer[:n])
	if err != nil || len(messages) == 0 || messages[0].Header.Type != syscall.NLMSG_ERROR || len(messages[0].Data) < 4 {
		return fmt.Errorf("parse the kernel's answer: %w", errors.Join(err, syscall.EBADMSG))
	}
	if code := int32(binary.NativeEndian.Uint32(messages[0].Data)); code != 0 {
		return syscall.Errno(-code)
	}
	return nil
}
