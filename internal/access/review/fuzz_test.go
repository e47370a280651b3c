// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package review

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// A token that is worth a review has three parts, and does not become so later.
func FuzzWellFormed(f *testing.F) {
	now := time.Unix(1000, 0)
	for _, claims := range []string{`{"aud":["lockstep"],"exp":1001}`, `{"aud":"lockstep","exp":1e300}`, `{"aud":[1],"exp":null}`, `[]`} {
		f.Add(tokenOf(claims))
	}
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		assert.False(t, wellFormed(token, now) && (strings.Count(token, ".") != 2 || strings.HasSuffix(token, ".")), "%q counts as a token", token)
		assert.False(t, wellFormed(token, now.Add(time.Hour)) && !wellFormed(token, now), "%q is for the driver in an hour only", token)
	})
}
