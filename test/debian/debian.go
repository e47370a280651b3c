// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package debian installs Debian's packages that tests need beside Go modules.
package debian

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Install installs packages as root on Debian. Elsewhere the error says that they are missing.
func Install(ctx context.Context, log io.Writer, packages ...string) error {
	names := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil || os.Geteuid() != 0 {
		return fmt.Errorf("packages are not installed: %s", names)
	}
	fmt.Fprintf(log, "install %s\n", names)
	for _, args := range [][]string{{"update", "-qq"}, append([]string{"install", "-y", "-qq", "--no-install-recommends"}, packages...)} {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("install %s: %w\n%s", names, err, output)
		}
	}
	return nil
}
