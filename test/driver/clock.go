// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// clockSource becomes a file of the command.
//
//go:embed testdata/clock.go
var clockSource []byte

// ClockBinary returns the path of a lockstep binary whose wall clock the test sets, and builds it once per test binary. It is the product,
// built with another package time: the monotonic clock continues, as on a machine whose clock is set.
var ClockBinary = sync.OnceValues(func() (string, error) {
	dir, err := binaryDir()
	if err != nil {
		return "", fmt.Errorf("create directory: %w", err)
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", fmt.Errorf("find the root module: %w", err)
	}
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find package time: %w", err)
	}
	clock := filepath.Join(strings.TrimSpace(string(goroot)), "src", "time", "time.go")
	source, err := os.ReadFile(clock)
	if err != nil {
		return "", fmt.Errorf("read package time: %w", err)
	}
	const read = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	changed := strings.Replace(string(source), read, read+"\tsec += Ahead.Load()\n", 1)
	if changed == string(source) {
		return "", errors.New("package time no longer reads the clock as this test expects")
	}
	changed = strings.Replace(changed, "import (\n", "import (\n\t\"sync/atomic\"\n", 1) + "\n// Ahead is in seconds.\nvar Ahead atomic.Int64\n"
	timeFile, commandFile, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "clock.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		clock: timeFile,
		filepath.Join(root, "cmd", "lockstep", "clock.go"): commandFile,
	}})
	err = errors.Join(err, os.WriteFile(timeFile, []byte(changed), 0o600), os.WriteFile(commandFile, clockSource, 0o600), os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		return "", fmt.Errorf("write the overlay: %w", err)
	}
	return build("clock", "-overlay", overlay)
})

// Jump sets the driver's wall clock an hour ahead or back. The driver has to run [ClockBinary].
func (d *Driver) Jump(ahead bool) {
	d.t.Helper()
	sig := syscall.SIGUSR2
	if ahead {
		sig = syscall.SIGUSR1
	}
	d.signal(sig)
}
