// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// Each SIGUSR1 sets the wall clock an hour ahead, each SIGUSR2 an hour back.
func init() {
	jumps := make(chan os.Signal, 1)
	signal.Notify(jumps, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range jumps {
			if s == syscall.SIGUSR1 {
				time.Ahead.Add(3600)
			} else {
				time.Ahead.Add(-3600)
			}
			os.Stderr.WriteString("the wall clock is at " + time.Now().String() + "\n")
		}
	}()
}
