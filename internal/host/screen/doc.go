// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package screen shows running releases on a whole terminal: a list, and what is to be known about one of them.
//
// [Screen] is the state and has no I/O and no clock: news, keys and the time come in by Update, and View is a pure function
// of what came. [Run] is the shell that puts it on a terminal. It only looks: nothing acts on a release from here.
package screen
