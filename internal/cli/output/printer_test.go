// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package output

import (
	"bytes"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/term"

	"github.com/lockstep-rollouts/lockstep/internal/host/view"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Text has colours on a terminal, unless the environment says otherwise, and never elsewhere.
func TestTextColours(t *testing.T) {
	styled := view.Active.Render("upgrading")
	for name, tc := range map[string]struct{ variable, value, want string }{
		"terminal": {"TERM", "xterm-256color", styled},
		"NO_COLOR": {"NO_COLOR", "1", "upgrading"},
		"dumb":     {"TERM", "dumb", "upgrading"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TERM", "xterm-256color")
			t.Setenv("NO_COLOR", "")
			t.Setenv(tc.variable, tc.value)
			far, near, err := pty.Open()
			require.NoError(t, err)
			defer far.Close()
			defer near.Close()
			_, err = term.MakeRaw(int(near.Fd()))
			require.NoError(t, err)
			_, err = Text(near).Write([]byte(styled + "\n"))
			require.NoError(t, err)
			got := make([]byte, 100)
			n, err := far.Read(got)
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(bytes.TrimSuffix(got[:n], []byte("\n"))))
		})
	}
	var file bytes.Buffer
	_, err := Text(&file).Write([]byte(styled))
	assert.True(t, err == nil && file.String() == "upgrading", "got %q, %v", &file, err)
}

// A warning is one line, whatever the cluster's objects are named or the API server says.
func TestWarningsAreLines(t *testing.T) {
	var text bytes.Buffer
	(&Printer{Stderr: &text}).Warn(&pb.Warning{Code: "A", Message: "one\ntwo\x1b[2J"})
	assert.Equal(t, "warning: one two [2J [A]\n", text.String())
}
