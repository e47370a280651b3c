// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is the lockstep program: flags become options, options become a running driver or one request to it.
//
// The program is started in three ways. A host that sets a plugin cookie gets a plugin, before any command is looked
// at. `lockstep serve` is a server. Everything else is a command for people.
package cli
