// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockstep-rollouts/lockstep/test/debian"
)

// packages has Debian's packages that nodes need, by a command that reports whether they are there: kube-proxy runs nft, and runc is
// compiled with libseccomp.
var packages = []struct {
	check []string
	names []string
}{
	{[]string{"nft", "--version"}, []string{"nftables"}},
	{[]string{"pkg-config", "--exists", "libseccomp"}, []string{"pkg-config", "libseccomp-dev"}},
	{[]string{"gcc", "--version"}, []string{"gcc", "libc6-dev"}},
}

// installPackages installs what nodes need beside Go modules, as root on Debian. Elsewhere it says what is missing.
func installPackages(ctx context.Context, log io.Writer) error {
	var missing []string
	for _, p := range packages {
		if exec.CommandContext(ctx, p.check[0], p.check[1:]...).Run() != nil {
			missing = append(missing, p.names...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if err := debian.Install(ctx, log, missing...); err != nil {
		return fmt.Errorf("nodes with containers: %w", err)
	}
	return nil
}

// KillNode kills everything that runs on a node at once, its containers too, as when a machine loses power.
func (c *Cluster) KillNode(i int) error {
	if err := errors.Join(c.KillComponent(Kubelet(i)), c.KillComponent(Containerd(i))); err != nil {
		return err
	}
	return c.killContainers(i)
}

// killContainers kills the containers of a node, whose processes are descendants of its shims.
func (c *Cluster) killContainers(i int) error {
	children, err := processes()
	if err != nil {
		return err
	}
	var kill func(pid int) error
	kill = func(pid int) error {
		var all []error
		for _, child := range children[pid] {
			all = append(all, kill(child))
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			all = append(all, fmt.Errorf("kill process %d: %w", pid, err))
		}
		return errors.Join(all...)
	}
	var all []error
	for _, pids := range children {
		for _, pid := range pids {
			if isShim(pid, c.containerdSocket(i)) {
				all = append(all, kill(pid))
			}
		}
	}
	return errors.Join(all...)
}

// processes returns the children of each process.
func processes() (map[int][]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	children := map[int][]int{}
	for _, file := range files {
		stat, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		// 12 (name of the program) S 1 ...
		var parent int
		var state string
		_, rest, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')'):]), " ")
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			return nil, fmt.Errorf("parse %s: %w", file, err)
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		children[parent] = append(children[parent], pid)
	}
	return children, nil
}

// isShim reports whether a process is a shim of this containerd.
func isShim(pid int, socket string) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	args := strings.Split(string(raw), "\x00")
	return err == nil && strings.HasSuffix(args[0], "containerd-shim-runc-v2") && slices.Contains(args, socket)
}

// unmountBelow unmounts what is mounted below a directory, the innermost first.
func unmountBelow(dir string) error {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var all []error
	for _, line := range slices.Backward(strings.Split(strings.TrimSpace(string(raw)), "\n")) {
		if path := strings.Fields(line)[4]; strings.HasPrefix(path, dir+"/") {
			if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
				all = append(all, fmt.Errorf("unmount %s: %w", path, err))
			}
		}
	}
	return errors.Join(all...)
}
