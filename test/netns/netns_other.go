// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netns

import (
	"errors"
	"net/netip"
)

func outer(config) (int, error) { return 0, errors.ErrUnsupported }

func configure([]netip.Prefix, []netip.Addr) error { return errors.ErrUnsupported }

func namespace() (string, error) { return "", errors.ErrUnsupported }

func initProcess(invocation) int { return exitNamespace }

func guard(invocation) int { return exitNamespace }

func mountNode() error { return errors.ErrUnsupported }

// NodePossible returns what this machine lacks for [MainOnNode].
func NodePossible() error { return errors.ErrUnsupported }
