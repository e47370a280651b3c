// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// metricsLimit bounds a page of metrics. A leader's has some 100 KiB.
const metricsLimit = 1 << 20

// readMetric returns the sum of all samples of a metric, whatever their labels, in the Prometheus text format. It fails
// if there is no sample, or one that can't be a number of requests: an invalid response must not be read as 0.
//
// Only the metric's own lines are kept and parsed, one at a time, so that neither the page's size nor errors in other metrics matter,
// and a name with a suffix such as "_count" selects the samples of that name.
func readMetric(page io.Reader, metric string) (sum float64, err error) {
	samples := 0
	err = eachSample(page, metric, func(line []byte) error {
		value, err := parseSample(line, metric)
		sum += value
		samples++
		return err
	})
	switch {
	case err != nil:
		return 0, err
	case samples == 0:
		return 0, fmt.Errorf("the page has no metric %s", metric)
	}
	return sum, nil
}

// parseSample returns the value in a line of the metric.
func parseSample(line []byte, metric string) (float64, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(line))
	if err != nil {
		return 0, fmt.Errorf("the metric %s can't be read: %w", metric, plain(err))
	}
	all := families[metric].GetMetric()
	if len(all) != 1 {
		return 0, fmt.Errorf("the metric %s can't be read: a line has %d samples", metric, len(all))
	}
	value := all[0].GetUntyped().GetValue()
	if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
		return 0, fmt.Errorf("the metric %s has a sample of %g, which can't be a number of requests", metric, value)
	}
	return value, nil
}

// eachSample calls f with each line of a page that is a sample of the metric, until f fails. f must not keep the line.
func eachSample(page io.Reader, metric string, f func(line []byte) error) error {
	limited := &io.LimitedReader{R: page, N: metricsLimit + 1}
	r := bufio.NewReader(limited)
	var line []byte // the part of a sample that was read so far
	for begins := true; ; {
		part, err := r.ReadSlice('\n')
		if begins && isSample(part, metric) || len(line) > 0 {
			line = append(line, part...)
		}
		begins = !errors.Is(err, bufio.ErrBufferFull)
		switch {
		case limited.N <= 0:
			return fmt.Errorf("the page of metrics is larger than %d MiB", metricsLimit>>20)
		case err != nil && begins && !errors.Is(err, io.EOF):
			return fmt.Errorf("read the page of metrics: %w", err)
		case begins && len(line) > 0:
			if err := f(line); err != nil {
				return err
			}
			line = line[:0]
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
	}
}

// isSample reports whether a line begins with the name of the metric, and not with a longer name.
func isSample(line []byte, metric string) bool {
	rest, found := bytes.CutPrefix(bytes.TrimLeft(line, " \t"), []byte(metric))
	return found && (len(rest) == 0 || strings.IndexByte("{ \t\r\n", rest[0]) >= 0)
}
