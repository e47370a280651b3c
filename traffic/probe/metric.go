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
const metricsLimit = 8 << 20

// readMetric returns the sum of all samples of a metric, whatever their labels, in the Prometheus text format. It fails
// if there is no sample, or one that can't be a number of requests: an invalid response must not be read as 0.
//
// Only the metric's own lines are parsed, so that neither the page's size nor errors in other metrics matter, and a name
// with a suffix such as "_count" selects the samples of that name.
func readMetric(page io.Reader, metric string) (float64, error) {
	lines, err := linesOf(page, metric)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return 0, fmt.Errorf("the metric %s can't be read: %w", metric, plain(err))
	}
	samples := families[metric].GetMetric()
	if len(samples) == 0 {
		return 0, fmt.Errorf("the page has no metric %s", metric)
	}
	sum := 0.0
	for _, sample := range samples {
		value := sample.GetUntyped().GetValue()
		if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
			return 0, fmt.Errorf("the metric %s has a sample of %g, which can't be a number of requests", metric, value)
		}
		sum += value
	}
	return sum, nil
}

// linesOf returns the lines of a page that are samples of the metric.
func linesOf(page io.Reader, metric string) ([]byte, error) {
	limited := &io.LimitedReader{R: page, N: metricsLimit + 1}
	r := bufio.NewReader(limited)
	var found []byte
	for {
		line, err := r.ReadBytes('\n')
		if isSample(line, metric) {
			found = append(found, line...)
		}
		switch {
		case limited.N <= 0:
			return nil, fmt.Errorf("the page of metrics is larger than %d MiB", metricsLimit>>20)
		case errors.Is(err, io.EOF):
			return found, nil
		case err != nil:
			return nil, fmt.Errorf("read the page of metrics: %w", err)
		}
	}
}

// isSample reports whether a line begins with the name of the metric, and not with a longer name.
func isSample(line []byte, metric string) bool {
	rest, found := bytes.CutPrefix(bytes.TrimLeft(line, " \t"), []byte(metric))
	return found && (len(rest) == 0 || strings.IndexByte("{ \t\r\n", rest[0]) >= 0)
}
