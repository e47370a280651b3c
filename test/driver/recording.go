// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/assert"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// RecordingsEnv names a directory in which the decisions of each test's drivers are kept. The recording of a failure becomes
// a test of the planner when it is copied to lwsdriver/replay/testdata.
const RecordingsEnv = "LOCKSTEP_TEST_RECORDINGS"

// recording returns the path of the file with the driver's decisions.
func (d *Driver) recording() string { return filepath.Join(d.dir, "decisions.jsonl") }

// replay fails the test unless replaying the driver's recording makes the same decisions.
func (d *Driver) replay() {
	d.t.Helper()
	raw, err := os.ReadFile(d.recording())
	if os.IsNotExist(err) {
		return // it was never started
	}
	if err == nil {
		err = replay.Read(bytes.NewReader(raw), func(line int, e replay.Entry) error {
			diff, err := e.Replay()
			assert.Empty(d.t, diff, "decision %d differs when it is replayed", line)
			return err
		})
	}
	assert.NoError(d.t, err, "replay the driver's decisions")
	if dir := os.Getenv(RecordingsEnv); dir != "" {
		name := strings.NewReplacer("/", "-", " ", "-").Replace(d.t.Name())
		assert.NoError(d.t, add(filepath.Join(dir, name+".jsonl"), raw))
	}
}

// add appends to a file: a test may have several drivers.
func add(path string, raw []byte) error {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(raw)
	return errors.Join(err, file.Close())
}
