// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package kruise

import (
	"github.com/lockstep-rollouts/lockstep/plugin"
	"github.com/lockstep-rollouts/lockstep/plugin/converge"
)

// Driver is the part of the contract that this host needs, as plugin.Client has it.
type Driver interface {
	converge.Driver
	plugin.ContextWatcher
}

var _ Driver = (*plugin.Client)(nil)
