// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hierarchies are the cgroup hierarchies (version 1) that a container runtime needs.
var hierarchies = []string{"cpu", "cpuset", "devices", "freezer", "memory", "pids"}

// NodePossible returns what this machine lacks for [MainOnNode].
func NodePossible() error {
	if os.Geteuid() != 0 {
		return errors.New("a kubelet and containers need root")
	}
	mounted, err := cgroups()
	if err != nil {
		return err
	}
	for _, hierarchy := range hierarchies {
		if mounted[hierarchy] == "" {
			return fmt.Errorf("cgroup hierarchy %s is not mounted below /sys/fs/cgroup; version 2 of cgroups alone is not supported here", hierarchy)
		}
	}
	return nil
}

// cgroups returns this process's directory in each mounted hierarchy of version 1, by controller.
func cgroups() (map[string]string, error) {
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	dirs := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		// 4:memory:/user.slice
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue
		}
		for controller := range strings.SplitSeq(strings.TrimPrefix(fields[1], "name="), ",") {
			dir := filepath.Join("/sys/fs/cgroup", controller, fields[2])
			if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
				dirs[controller] = dir
			}
		}
	}
	return dirs, nil
}

// initProcess is the first process of the namespaces. It enters a cgroup of its own and runs the program, which gets that cgroup as
// the root of its hierarchies. When it ends, the kernel kills all other processes of the namespace.
func initProcess(as invocation) int {
	own, err := cgroups()
	if err != nil {
		return failed("find the cgroups", err)
	}
	for _, dir := range own {
		if err := enterCgroup(dir, as.Cgroup); err != nil {
			return failed("create a cgroup", err)
		}
	}
	as.Role = roleRun
	code, err := reexec(as, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWCGROUP})
	if err != nil {
		return failed("this machine can't run a node", err)
	}
	return code
}

func enterCgroup(parent, name string) error {
	dir := filepath.Join(parent, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	// A new cpuset has no processors and no memory, and takes no process.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0)
}

// mountNode mounts what belongs to the namespaces. Nothing of it is visible outside.
func mountNode() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	mounted, err := cgroups()
	if err != nil {
		return err
	}
	for controller := range mounted {
		options := controller
		if controller == "systemd" {
			options = "name=systemd"
		}
		dir := filepath.Join("/sys/fs/cgroup", controller)
		// The kernel refuses to mount a hierarchy over itself.
		err := unix.Unmount(dir, unix.MNT_DETACH)
		if err == nil {
			err = unix.Mount("cgroup", dir, "cgroup", 0, options)
		}
		if err != nil {
			return fmt.Errorf("mount cgroup hierarchy %s: %w", controller, err)
		}
	}
	for _, dir := range []string{"/run", "/var/log", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	return nil
}

// guardTimeout bounds how long the guard waits for the last processes of a cgroup to end.
const guardTimeout = 20 * time.Second

// startGuard starts a process that removes the cgroups when this process has ended, however it ends. The result ends it and waits.
func startGuard(as invocation) (func(), error) {
	as.Role = roleGuard
	cmd, err := again(as)
	if err != nil {
		return nil, err
	}
	// It must outlive this process, and a signal to its group.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	alive, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the guard of the cgroups: %w", err)
	}
	// It is ready when it has written a line: it knows its cgroups then.
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		return nil, fmt.Errorf("start the guard of the cgroups: %w", errors.Join(err, cmd.Wait()))
	}
	return func() {
		_ = alive.Close()
		var exit *exec.ExitError
		if err := cmd.Wait(); errors.As(err, &exit) {
			fmt.Fprintf(os.Stderr, "netns: cgroups named %s are left below /sys/fs/cgroup\n", as.Cgroup)
		}
	}, nil
}

// guard waits until its standard input ends, and removes the cgroups.
func guard(as invocation) int {
	own, err := cgroups()
	if err != nil {
		return failed("find the cgroups", err)
	}
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
	for deadline := time.Now().Add(guardTimeout); ; time.Sleep(20 * time.Millisecond) {
		err := removeCgroups(own, as.Cgroup)
		if err == nil {
			return 0
		}
		if time.Now().After(deadline) {
			return 1
		}
	}
}

// removeCgroups removes the cgroups with this name, the innermost first. It fails while they have processes.
func removeCgroups(parents map[string]string, name string) error {
	var all []error
	for _, parent := range parents {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(parent, name), func(path string, entry os.DirEntry, err error) error {
			if err == nil && entry.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				all = append(all, err)
			}
		}
	}
	return errors.Join(all...)
}
