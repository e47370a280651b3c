// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func TestReadMetric(t *testing.T) {
	for _, tt := range []struct {
		name, page string
		want       float64
		err        string
	}{
		{"one", "m 3\n", 3, ""},
		{"labels, spaces, timestamps", " m { a = \"}\\\"\\n m 9\" , b=\"\" } 1.5 1700000000000\nm\t1e1\n", 11.5, ""},
		{"comments", "# HELP m 7\n# TYPE m gauge\nm 0\n#m 8\n", 0, ""},
		{"longer names", "m_total 5\nmm 5\nm:x 5\nxm 5\nm{} 1\n", 1, ""},
		{"errors in other metrics", "!\nx{ 1\n# TYPE x nonsense\nm 1\n", 1, ""},
		{"empty page", "", 0, "the page has no metric m"},
		{"other metric", "x 0\n", 0, "the page has no metric m"},
		{"without a value", "m\n", 0, "can't be read"},
		{"cut off", "m 0", 0, "can't be read"},
		{"cut off in the labels", "m 0\nm{a=\"", 0, "can't be read"},
		{"no number", "m zero\n", 0, "can't be read"},
		{"NaN", "m NaN\n", 0, "can't be a number of requests"},
		{"infinite", "m +Inf\n", 0, "can't be a number of requests"},
		{"negative", "m{a=\"1\"} 1\nm{a=\"2\"} -1\n", 0, "can't be a number of requests"},
		{"long lines", "x{a=\"" + strings.Repeat("m 7", 5000) + "\"} 1\nm{a=\"" + strings.Repeat("x", 10000) + "\"} 2\n" + "m 1\n", 3, ""},
		{"a sample that is too long", "m{a=\"" + strings.Repeat("x", lineLimit) + "\"} 2\n", 0, "can't be read"},
		{"the rest of a long line", strings.Repeat("x", lineLimit) + "m 7\nm 1\n", 1, ""},
		{"many samples", strings.Repeat("m 0\n", samplesLimit+1), 0, "more than 4096 samples"},
		{"large", "m 0\n" + strings.Repeat("x", metricsLimit), 0, "larger than 1 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := readMetric(strings.NewReader(tt.page), "m")
			assert.False(t, got != tt.want || (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)),
				"%g, %v; want %g, %q", got, err, tt.want, tt.err)
		})
	}
	t.Run("a histogram's count", func(t *testing.T) {
		page := "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 4\nh_sum 7\nh_count 4\n"
		got, err := readMetric(strings.NewReader(page), "h_count")
		assert.True(t, err == nil && got == 4, "%g, %v", got, err)
	})
	t.Run("fails", func(t *testing.T) {
		broken := io.MultiReader(strings.NewReader("m 0\n"), failing{})
		_, err := readMetric(broken, "m")
		assert.ErrorIs(t, err, errBroken)
	})
}

// A page takes little memory, whatever a leader answers.
func TestPagesTakeLittleMemory(t *testing.T) {
	for name, page := range map[string]string{
		"one line":     strings.Repeat("x", metricsLimit),
		"one sample":   "m{a=\"" + strings.Repeat("x", metricsLimit-20) + "\"} 1\n",
		"many samples": strings.Repeat("m 0\n", metricsLimit/4),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := readMetric(strings.NewReader(page), "m")
		runtime.ReadMemStats(&after)
		took := after.TotalAlloc - before.TotalAlloc
		assert.LessOrEqual(t, took, uint64(8<<20), "%s: %d KiB, %v", name, took>>10, err)
	}
}

var errBroken = errors.New("broken")

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errBroken }

// TestReadMetricSums: the samples of the name are added up, whatever their labels and the rest of the page.
func TestReadMetricSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		label := rapid.Custom(func(t *rapid.T) string {
			value := rapid.StringOf(rapid.RuneFrom([]rune("a{}\"\\\n ,=#7é"))).Draw(t, "value")
			return fmt.Sprintf("%s=\"%s\"", rapid.SampledFrom([]string{"a", "b", metric[:4]}).Draw(t, "label"),
				strings.NewReplacer("\\", `\\`, "\n", `\n`, "\"", `\"`).Replace(value))
		})
		var want float64
		samples := 0
		var page strings.Builder
		for range rapid.IntRange(0, 20).Draw(t, "lines") {
			name := rapid.SampledFrom([]string{metric, metric + "_total", "x" + metric, metric[:10], "# " + metric, "# HELP " + metric, ""}).Draw(t, "name")
			if name == "" {
				page.WriteString(rapid.SampledFrom([]string{"\n", "garbage\n", "#\n"}).Draw(t, "other"))
				continue
			}
			value := rapid.IntRange(0, 5).Draw(t, "value")
			if name == metric {
				samples++
				want += float64(value)
			}
			labels := strings.Join(rapid.SliceOfNDistinct(label, 0, 2, func(l string) string { return l[:1] }).Draw(t, "labels"), ",")
			fmt.Fprintf(&page, "%s{%s} %d\n", name, labels, value)
		}
		got, err := readMetric(strings.NewReader(page.String()), metric)
		if samples == 0 && err == nil {
			t.Fatalf("%g from no sample in:\n%s", got, page.String())
		}
		if samples > 0 && (err != nil || got != want) {
			t.Fatalf("%g, %v; want %g from:\n%s", got, err, want, page.String())
		}
	})
}

// FuzzReadMetric: no page makes the driver panic, and 0 is never read from a page without the metric.
func FuzzReadMetric(f *testing.F) {
	for _, seed := range []string{"m 0\n", "m{a=\"b\"} 1 2\n", "{m} 1\n", "{\"m\",a=\"b\"} 1\n", "m{} NaN\n", "m{a=\"", "# TYPE m histogram\nm 0\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, page string) {
		got, err := readMetric(strings.NewReader(page), "m")
		assert.False(t, err == nil && (got < 0 || math.IsNaN(got) || !strings.Contains(page, "m")), "%g from %q", got, page)
	})
}
