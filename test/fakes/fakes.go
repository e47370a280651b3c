// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fakes mends what client-go's fake clients do otherwise than an API server.
package fakes

import (
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// CopyWatched gives each watcher of the fakes objects of its own, as if they had come over the wire. The trackers hand out
// the ones that they keep, which an informer's transform must not change while others read them.
//
// Call it before anything watches.
func CopyWatched(fakes ...*clienttesting.Fake) {
	for _, f := range fakes {
		f.Lock()
		for i, reactor := range f.WatchReactionChain {
			f.WatchReactionChain[i] = copying{reactor}
		}
		f.Unlock()
	}
}

type copying struct{ clienttesting.WatchReactor }

func (c copying) React(action clienttesting.Action) (bool, watch.Interface, error) {
	handled, shared, err := c.WatchReactor.React(action)
	if !handled || err != nil || shared == nil {
		return handled, shared, err
	}
	return true, watch.Filter(shared, func(e watch.Event) (watch.Event, bool) {
		e.Object = e.Object.DeepCopyObject()
		return e, true
	}), nil
}
