// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
	"sync"
)

// rendering is a string, so that tests can build drivers of other versions: go build -ldflags "-X ...record.rendering=2".
var rendering = "2"

// Rendering returns the rendering version of this driver, that of what it renders for a release: the canary's manifest, and
// what it writes on the user's Services and routes. Increase it with a change that a driver without the change would repair, so that drivers of
// two versions don't undo each other's writes in turns. See [Release.Rendering].
var Rendering = sync.OnceValue(func() int {
	n, err := strconv.Atoi(rendering)
	if err != nil {
		panic(fmt.Sprintf("the rendering version is %q: build Lockstep with an integer", rendering))
	}
	return n
})
