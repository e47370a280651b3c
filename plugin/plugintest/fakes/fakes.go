// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fakes corrects differences between client-go's fake clients and an API server.
package fakes

import (
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// CopyWatched gives each watcher of the fakes its own copies of objects, as over the wire. The object trackers hand out the
// objects that they store, which an informer's transform must not change while they are read.
//
// Call it before the first watch.
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

// React adds a reactor to the beginning of the chain of a fake, which may be in use by then: client-go's PrependReactor does not
// lock.
func React(f *clienttesting.Fake, verb, resource string, reaction clienttesting.ReactionFunc) {
	f.Lock()
	defer f.Unlock()
	f.PrependReactor(verb, resource, reaction)
}
