// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"io"
	"log/slog"
	"strings"

	"github.com/hashicorp/go-hclog"
)

// hclogTime is the timestamp layout that go-plugin hosts parse.
const hclogTime = "2006-01-02T15:04:05.000000Z07:00"

// NewLogHandler returns a handler that writes JSON lines in the format that go-plugin hosts parse from a plugin's stderr,
// so that level, message and attributes are kept.
func NewLogHandler(w io.Writer, level slog.Leveler) slog.Handler {
	return slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: toHCLogAttr})
}

// toHCLogAttr renames slog's own attributes, which are outside of groups, and formats durations.
func toHCLogAttr(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		// JSON has no durations, and a count of nanoseconds is unreadable.
		return slog.String(a.Key, a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		if a.Value.Kind() == slog.KindTime {
			return slog.String("@timestamp", a.Value.Time().Format(hclogTime))
		}
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok {
			return slog.String("@level", strings.ToLower(hclogLevel(level).String()))
		}
	case slog.MessageKey:
		return slog.String("@message", a.Value.String())
	}
	return a
}

// hclogLevel returns the level at or below a level of slog. Levels of slog are 4 apart, and hclog's begin one below Debug.
func hclogLevel(level slog.Level) hclog.Level {
	nearest := (int(level) + 12) / 4
	return hclog.Level(min(max(nearest, int(hclog.Trace)), int(hclog.Error))) //nolint:gosec // between 1 and 5
}

func slogLevel(level hclog.Level) slog.Level {
	if level == hclog.NoLevel {
		return slog.LevelInfo
	}
	return slog.Level(4 * (int(level) - int(hclog.Info)))
}

// NewHCLogger returns go-plugin's kind of logger, which logs to slog.
func NewHCLogger(logger *slog.Logger) hclog.Logger {
	// The root logger itself stays silent; the sink gets every level and slog's handler decides.
	l := hclog.NewInterceptLogger(&hclog.LoggerOptions{Level: hclog.Trace, Output: io.Discard})
	l.RegisterSink(slogSink{logger})
	return l
}

// slogSink passes log lines of hclog to slog.
type slogSink struct{ logger *slog.Logger }

var _ hclog.SinkAdapter = slogSink{}

// Accept logs one line.
func (s slogSink) Accept(name string, level hclog.Level, msg string, args ...any) {
	if name != "" {
		args = append([]any{"plugin", name}, args...)
	}
	s.logger.Log(context.Background(), slogLevel(level), msg, args...)
}
