// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"
)

// killDelay is how long a plugin may take to exit after ctx was cancelled and it received SIGTERM.
const killDelay = 3 * time.Second

// exitPoll is how often go-plugin is polled for the end of the process, for which it has no notification.
const exitPoll = 250 * time.Millisecond

var (
	// ErrChecksum is wrapped by Launch's error for a binary with another checksum than LaunchOptions.SHA256.
	ErrChecksum = errors.New("checksum mismatch")
	// ErrNotPlugin is wrapped by Launch's error for a program that does not complete the handshake of a driver plugin.
	ErrNotPlugin = errors.New("not a Lockstep driver plugin")
)

// LaunchOptions say how to start a driver's binary.
type LaunchOptions struct {
	// Logger gets the plugin's log. Nil means none.
	Logger *slog.Logger
	// SHA256 is that of the binary, in hex. Empty means any.
	SHA256 string
	// Args are the plugin's arguments.
	Args []string
	// Env are "KEY=value" pairs beside the environment that the plugin inherits from this process. The last value of a key wins.
	Env []string
	// StartTimeout bounds the time from the start to the handshake. 0 means 30 seconds.
	StartTimeout time.Duration
}

// defaultStartTimeout bounds the start of a plugin.
const defaultStartTimeout = 30 * time.Second

// Launch starts a driver's binary as a plugin and connects to it with mutual TLS, under certificates for this connection
// only. The process ends with [Client.Close], when ctx is cancelled, and, if it serves with [Serve], when this process
// ends.
//
// The error wraps fs.ErrNotExist, fs.ErrPermission, [ErrChecksum] or [ErrNotPlugin] if that is the cause. The checksum is
// verified before the start, so it does not protect against a user who can replace the file in between.
func Launch(ctx context.Context, path string, o LaunchOptions) (*Client, error) {
	path, err := exec.LookPath(path)
	if err != nil {
		return nil, fmt.Errorf("find plugin: %w", err)
	}
	if err := o.verifyChecksum(path); err != nil {
		return nil, fmt.Errorf("verify plugin %s: %w", path, err)
	}
	p, err := newProcess(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("start plugin %s: %w", path, err)
	}
	c, err := p.connect(ctx, path)
	if err != nil {
		p.kill()
		// go-plugin describes a process that ctx has ended like a program that is no plugin.
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("start plugin %s: %w%s", path, err, p.stderr.note())
	}
	return c, nil
}

// process is a plugin's process.
type process struct {
	plugin *goplugin.Client
	stderr *tailWriter
	// dir holds the plugin's socket, so that a plugin that is killed leaves none behind.
	dir string
}

// newProcess prepares a process; connect starts it.
func newProcess(ctx context.Context, path string, o LaunchOptions) (*process, error) {
	dir, err := os.MkdirTemp("", "lockstep-plugin-")
	if err != nil {
		return nil, err
	}
	p := &process{stderr: &tailWriter{}, dir: dir}
	o.Env = append(slices.Clip(o.Env), goplugin.EnvUnixSocketDir+"="+dir)
	p.plugin = goplugin.NewClient(o.clientConfig(ctx, path, p.stderr))
	return p, nil
}

// kill ends the process. It can be called again.
func (p *process) kill() {
	p.plugin.Kill()
	_ = os.RemoveAll(p.dir)
}

// connect starts the process, which then ends with the client and with ctx.
func (p *process) connect(ctx context.Context, path string) (*Client, error) {
	conn, err := startDriver(p.plugin)
	if err != nil {
		return nil, err
	}
	negotiate, cancel := context.WithTimeout(ctx, defaultConnectTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, p.kill)
	c, err := newClient(negotiate, conn, path, func() error {
		stop()
		p.kill()
		return nil
	})
	if err != nil {
		stop()
		return nil, err
	}
	c.exited = p.exited()
	return c, nil
}

// exited returns a channel that is closed once the process has ended.
func (p *process) exited() <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		poll := time.NewTicker(exitPoll)
		defer poll.Stop()
		for !p.plugin.Exited() {
			<-poll.C
		}
	}()
	return done
}

// startDriver runs the binary, reads its handshake and returns the connection.
func startDriver(plugin *goplugin.Client) (*grpc.ClientConn, error) {
	protocol, err := plugin.Client()
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n") // the rest is advice to authors of plugins
		return nil, fmt.Errorf("%w: %s", ErrNotPlugin, strings.TrimSpace(first))
	}
	dispensed, err := protocol.Dispense(Name)
	if err != nil {
		return nil, fmt.Errorf("dispense %s: %w", Name, err)
	}
	conn, ok := dispensed.(*grpc.ClientConn)
	if !ok {
		return nil, fmt.Errorf("dispense %s: got %T", Name, dispensed)
	}
	return conn, nil
}

func (o *LaunchOptions) clientConfig(ctx context.Context, path string, stderr io.Writer) *goplugin.ClientConfig {
	cmd := exec.CommandContext(ctx, path, o.Args...)
	// go-plugin holds its lock while it waits for the handshake, so a cancelled ctx must reach the process by itself.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	cmd.Env = append(hostEnv(os.Environ()), o.Env...)
	return &goplugin.ClientConfig{
		HandshakeConfig: handshakeConfig(),
		Plugins:         goplugin.PluginSet{Name: &grpcPlugin{}},
		Cmd:             cmd,
		// go-plugin would add this process's environment, with the variables that hostEnv drops.
		SkipHostEnv:      true,
		AutoMTLS:         true,
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		StartTimeout:     cmp.Or(o.StartTimeout, defaultStartTimeout),
		Stderr:           stderr,
		Logger:           NewHCLogger(cmp.Or(o.Logger, slog.New(slog.DiscardHandler))),
	}
}

// hostEnv drops go-plugin's own variables, for a host that is a plugin itself, as with Argo Rollouts.
func hostEnv(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(pair string) bool { return strings.HasPrefix(pair, "PLUGIN_") })
}

// verifyChecksum compares the file's SHA-256 with the one asked for, if any.
func (o *LaunchOptions) verifyChecksum(path string) error {
	if o.SHA256 == "" {
		return nil
	}
	want, err := hex.DecodeString(o.SHA256)
	if err != nil || len(want) != sha256.Size {
		return fmt.Errorf("expected SHA-256 %q is not %d hex digits", o.SHA256, hex.EncodedLen(sha256.Size))
	}
	same, err := (&goplugin.SecureConfig{Checksum: want, Hash: sha256.New()}).Check(path)
	if err == nil && !same {
		err = fmt.Errorf("%w: its SHA-256 is not %x", ErrChecksum, want)
	}
	return err
}

// tailSize is the most bytes of a plugin's stderr that an error quotes.
const tailSize = 512

// tailWriter keeps the last bytes written to it.
type tailWriter struct {
	mu  sync.Mutex
	buf []byte
}

// Write never fails.
func (w *tailWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = append(w.buf, p...)
	if over := len(w.buf) - tailSize; over > 0 {
		w.buf = append(w.buf[:0], w.buf[over:]...)
	}
	return len(p), nil
}

// note returns a suffix for an error, empty if nothing was written.
func (w *tailWriter) note() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := strings.TrimSpace(string(w.buf))
	if text == "" {
		return ""
	}
	return fmt.Sprintf("; its stderr ends with %q", text)
}
