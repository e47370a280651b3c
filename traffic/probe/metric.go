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

const (
	// metricsLimit bounds a page of metrics. A leader's has some 100 KiB.
	metricsLimit = 1 << 20
	// lineLimit bounds a line with a sample, and so what a page takes in memory. samplesLimit bounds what its samples take to read.
	lineLimit, samplesLimit = 64 << 10, 4096
)

// readMetric returns the sum of all samples of a metric, whatever their labels, in the Prometheus text format. It fails
// if there is no sample, or one that can't be a number of requests: an invalid response must not be read as 0.
//
// Only the metric's own lines are parsed, one at a time, so that neither the page's size nor errors in other metrics matter,
// and a name with a suffix such as "_count" selects the samples of that name.
func readMetric(page io.Reader, metric string) (sum float64, err error) {
	limited := &io.LimitedReader{R: page, N: metricsLimit + 1}
	r, parser := bufio.NewReaderSize(limited, lineLimit), expfmt.NewTextParser(model.UTF8Validation)
	for samples, long := 0, false; ; {
		line, failed := r.ReadSlice('\n')
		// A line that the limit has cut off may show a smaller number. The rest of a long line is none.
		if !long && isSample(line, metric) && limited.N > 0 {
			value, err := parseSample(&parser, line, metric)
			if err != nil {
				return 0, err
			}
			sum += value
			samples++
		}
		long = errors.Is(failed, bufio.ErrBufferFull)
		switch {
		case limited.N <= 0:
			return 0, fmt.Errorf("the page of metrics is larger than %d MiB", metricsLimit>>20)
		case samples > samplesLimit:
			return 0, fmt.Errorf("the page has more than %d samples of the metric %s", samplesLimit, metric)
		case failed == nil, long:
		case !errors.Is(failed, io.EOF):
			return 0, fmt.Errorf("read the page of metrics: %w", failed)
		case samples == 0:
			return 0, fmt.Errorf("the page has no metric %s", metric)
		default:
			return sum, nil
		}
	}
}

// parseSample returns the value in a line of the metric.
func parseSample(parser *expfmt.TextParser, line []byte, metric string) (float64, error) {
	families, err := parser.TextToMetricFamilies(bytes.NewReader(line))
	if err != nil {
		return 0, fmt.Errorf("the metric %s can't be read: %w", metric, withoutURL(err))
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

// isSample reports whether a line begins with the name of the metric, and not with a longer name.
func isSample(line []byte, metric string) bool {
	rest, found := bytes.CutPrefix(bytes.TrimLeft(line, " \t"), []byte(metric))
	return found && (len(rest) == 0 || strings.IndexByte("{ \t\r\n", rest[0]) >= 0)
}
