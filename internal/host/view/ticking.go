// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package view

import "time"

// ticking calls a function each second in the background.
type ticking struct {
	ended, done chan struct{}
}

func everySecond(call func(now time.Time)) *ticking {
	t := &ticking{ended: make(chan struct{}), done: make(chan struct{})}
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

// stop returns once no call is under way and none will come. It is called once.
func (t *ticking) stop() {
	close(t.ended)
	<-t.done
}
