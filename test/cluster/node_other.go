// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package cluster

import (
	"context"
	"errors"
	"io"
)

// KillNode kills everything that runs on a node at once. It needs Linux, as nodes do.
func (c *Cluster) KillNode(int) error { return errors.ErrUnsupported }

func (c *Cluster) killContainers(int) error { return errors.ErrUnsupported }

func unmountBelow(string) error { return errors.ErrUnsupported }

func installPackages(context.Context, io.Writer) error { return errors.ErrUnsupported }
