// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
)

var errPlatform = errors.New("a cluster needs Linux: other systems don't kill children with their parent")

func processAttributes() *syscall.SysProcAttr { return nil }

func killGroup(int) error { return errPlatform }

func tryLock(*os.File) (bool, error) { return false, errPlatform }

func claimPort(context.Context, int) (net.Listener, error) { return nil, errPlatform }

func memoryAvailable() int { return 0 }

// KillNode kills everything that runs on a node at once. It needs Linux, as nodes do.
func (c *Cluster) KillNode(int) error { return errors.ErrUnsupported }

func (c *Cluster) killContainers(int) error { return errors.ErrUnsupported }

func unmountBelow(string) error { return errors.ErrUnsupported }

func installPackages(context.Context, io.Writer) error { return errors.ErrUnsupported }
