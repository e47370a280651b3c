// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import (
	"context"
	"errors"
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
