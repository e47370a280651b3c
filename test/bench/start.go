// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"
)

// measureStart starts the process repeatedly, in an almost empty cluster.
func (b *bench) measureStart(ctx context.Context, r *report) error {
	var answers, serves []time.Duration
	for range b.starts {
		d, err := b.startDriver(ctx)
		if err != nil {
			return err
		}
		answers, serves = append(answers, d.answers), append(serves, d.serves)
		d.stop()
	}
	r.Start = &startFigures{Starts: b.starts, Answers: spreadOf(answers), Serves: spreadOf(serves)}
	return nil
}
