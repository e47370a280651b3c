// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
)

const (
	// DefaultHistoryLimit is how many revisions a history keeps unless its user says otherwise.
	DefaultHistoryLimit = 10
	// maxHistoryLimit is as many as anybody may keep: each is an object with a whole template.
	maxHistoryLimit = 100
)

// HistoryLimit reads HistoryLimitAnnotation. With an error the default is to be used: a typing error must not cost
// anybody their history.
func HistoryLimit(annotations map[string]string) (int, error) {
	value, ok := annotations[HistoryLimitAnnotation]
	if !ok {
		return DefaultHistoryLimit, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxHistoryLimit {
		return DefaultHistoryLimit, fmt.Errorf("annotation %s is %q, want a number from 0 (no history) to %d: %d is taken instead",
			HistoryLimitAnnotation, value, maxHistoryLimit, DefaultHistoryLimit)
	}
	return n, nil
}
