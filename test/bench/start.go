// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
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
	healthy := spreadOf(answers)
	t := r.table(fmt.Sprintf("START of `lockstep serve`, %d times", b.starts), "median (extremes)")
	t.row("exec until health answers", "%s", healthy)
	t.row("exec until SERVING (caches filled)", "%s", spreadOf(serves))
	r.aim(healthy.median < 150*time.Millisecond, "exec until health answers, median", "below 150 ms", "%d ms", healthy.median.Milliseconds())
	return nil
}
