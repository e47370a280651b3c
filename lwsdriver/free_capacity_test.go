// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//nolint:forbidigo // The bubble\'s clock.
package lwsdriver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/plugin/plugintest/fakes"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// Callers share the lists of nodes and pods, one that gives up does not end them, and an error is not kept.
func TestFreeCapacityIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, broken := fake.NewClientset(), true
		fakes.React(&core.Fake, "list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
			time.Sleep(time.Second)
			if broken {
				return true, nil, errors.New("etcd is down")
			}
			return false, nil, nil
		})
		var r freeCapacity
		read := func(want int) {
			t.Helper()
			core.ClearActions()
			impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			var reading sync.WaitGroup
			for range 8 {
				reading.Go(func() {
					_, err := r.read(t.Context(), core)
					assert.Equal(t, broken, err != nil, "broken is %t: %v", broken, err)
				})
			}
			synctest.Wait()
			_, err := r.read(impatient, core)
			assert.False(t, want > 0 && !errors.Is(err, context.DeadlineExceeded), "of a caller that gives up: %v", err)
			reading.Wait()
			if got := len(core.Actions()); got != want {
				t.Errorf("%d lists, want %d: %v", got, want, core.Actions())
			}
		}
		read(1)
		broken = false
		read(2)
		read(0)
		time.Sleep(nodesPeriod + time.Second)
		read(2)
	})
}
