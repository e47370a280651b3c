// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import "time"

// periodic calls a function each second in the background.
type periodic struct {
	ended, done chan struct{}
}

func everySecond(call func(now time.Time)) *periodic {
	t := &periodic{ended: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(t.done)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-t.ended:
				return
			case now := <-ticker.C:
				call(now)
			}
		}
	}()
	return t
}

// stop waits for a call in progress. It must be called once.
func (t *periodic) stop() {
	close(t.ended)
	<-t.done
}
