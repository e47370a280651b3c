// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package bench

import (
	"fmt"
	"time"
)

// measureStart starts the process repeatedly, in an almost empty cluster.
func (b *bench) measureStart() {
	starts := smaller(11)
	var answers, serves []time.Duration
	for range starts {
		s := b.serve()
		answers, serves = append(answers, s.answers), append(serves, s.serves)
		s.stop()
	}
	healthy := spreadOf(answers)
	row := b.report.table(fmt.Sprintf("START of `lockstep serve`, %d times", starts), "median (extremes)")
	row("exec until health answers", "%s", healthy)
	row("exec until SERVING (caches filled)", "%s", spreadOf(serves))
	b.report.aim(healthy.median < 150*time.Millisecond, "exec until health answers, median", "below 150 ms", "%d ms", healthy.median.Milliseconds())
}
