// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"strconv"
)

const (
	// DefaultHistoryLimit is how many revisions a history keeps by default.
	DefaultHistoryLimit = 10
	// maxHistoryLimit bounds the limit: each revision is an object with a whole template.
	maxHistoryLimit = 100
)

// HistoryLimit reads HistoryLimitAnnotation. With an error it returns the default, so that a typo does not delete the
// history.
func HistoryLimit(annotations map[string]string) (int, error) {
	value, ok := annotations[HistoryLimitAnnotation]
	if !ok {
		return DefaultHistoryLimit, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > maxHistoryLimit {
		return DefaultHistoryLimit, fmt.Errorf("annotation %s is %q, want a number from 0 (no history) to %d: %d is used instead",
			HistoryLimitAnnotation, value, maxHistoryLimit, DefaultHistoryLimit)
	}
	return n, nil
}
