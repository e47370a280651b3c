// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/lockstep-rollouts/lockstep/internal/cli/connect"
	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
)

// newInstallCommand is for init containers of hosts that launch the binary in their own pod: the image has no shell to copy
// it with.
func newInstallCommand(o *connect.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "install PATH",
		Short: "Copy this program to a path, for a host that launches it as a plugin",
		Long: `Copy this program to PATH and print the copy's SHA-256. It is for init containers of hosts that launch the program from a
directory of their own pod, because the image has no shell.`,
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return exit.Usagef("%s needs the path of the copy, got %q", cmd.CommandPath(), args)
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			sum, err := copyBinary(args[0])
			if err != nil {
				return fmt.Errorf("install: %w", err)
			}
			_, err = fmt.Fprintf(o.Stdout, "%x  %s\n", sum, args[0])
			return err
		},
	}
}

// copyBinary copies this program to path atomically, and returns its SHA-256. A copy that is running is replaced, not
// overwritten.
func copyBinary(path string) ([]byte, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	from, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	defer func() { _ = from.Close() }()
	to, err := os.CreateTemp(filepath.Dir(path), ".lockstep-*")
	if err != nil {
		return nil, err
	}
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, hash), from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), path)
	}
	if err != nil {
		_ = os.Remove(to.Name())
		return nil, err
	}
	return hash.Sum(nil), nil
}
