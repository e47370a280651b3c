// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package informer runs informers that somebody waits for.
package informer

import (
	"context"

	"k8s.io/client-go/tools/cache"
)

// Run runs an informer until ctx ends, and calls filled once its cache is: an empty one has no event of its own.
func Run(ctx context.Context, informer cache.SharedIndexInformer, filled func()) {
	running, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if cache.WaitForCacheSync(running.Done(), informer.HasSynced) {
			filled()
		}
	}()
	informer.RunWithContext(ctx)
}
