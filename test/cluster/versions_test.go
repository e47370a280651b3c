// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestVersionsAreChosen(t *testing.T) {
	for _, test := range []struct {
		name, env  string
		given      Versions
		want, fail string
	}{
		{name: "default", want: "v1.36.3"},
		{name: "environment, minor only", env: "1.35", want: "v1.35.8"},
		{name: "option before environment", env: "1.35", given: Versions{Kubernetes: "v1.34.10"}, want: "v1.34.10"},
		{name: "no such version", env: "v1.3", fail: "LOCKSTEP_TEST_KUBERNETES"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, s := range selectables {
				t.Setenv(s.env, "")
			}
			t.Setenv("LOCKSTEP_TEST_KUBERNETES", test.env)
			got, err := test.given.Resolve()
			if test.fail != "" {
				assert.True(t, err != nil && strings.Contains(err.Error(), test.fail) && strings.Contains(err.Error(), "v1.35.8"),
					"want an error that names %s and the known versions, got %v", test.fail, err)
				return
			}
			assert.True(t, err == nil && got.Kubernetes == test.want && got.LWS == "v0.9.0",
				"got %+v, %v; want Kubernetes %s and LWS v0.9.0", got, err, test.want)
		})
	}
}
