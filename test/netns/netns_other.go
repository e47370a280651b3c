// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package netns

import (
	"errors"
	"net/netip"
)

func reexec() (int, error) { return 0, errors.ErrUnsupported }

func configure([]netip.Prefix) error { return errors.ErrUnsupported }

func namespace() (string, error) { return "", errors.ErrUnsupported }
