// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/plugin"
)

// dialRetry is the pause between two attempts to reach a driver at an address.
const dialRetry = 2 * time.Second

// Flags choose the driver that a command calls.
type Flags struct {
	// Address is where the driver listens. Empty means one inside this process.
	Address string

	flag    string
	options plugin.DialOptions
}

// Add registers the flags of a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	f.add(flags, "address", "driver to use: unix:///path or host:port, with TLS beyond loopback (default: one inside this process, with this kubeconfig and for this workload only)")
}

// AddAsDriver registers the flags of a host, which has --driver for --address.
func (f *Flags) AddAsDriver(flags *pflag.FlagSet) {
	f.add(flags, "driver", "driver to use: unix:///path, host:port or dns:///host:port (default: one inside this process)")
}

func (f *Flags) add(flags *pflag.FlagSet, name, usage string) {
	f.flag = "--" + name
	flags.StringVar(&f.Address, name, "", usage)
	flags.StringVar(&f.options.Cert, "tls-cert", "", "PEM file with a client certificate for the driver; needs --tls-key and --tls-ca")
	flags.StringVar(&f.options.Key, "tls-key", "", "PEM file with the client certificate's key")
	flags.StringVar(&f.options.CA, "tls-ca", "", "PEM file with the CA of the driver's certificate")
	flags.StringVar(&f.options.ServerName, "tls-server-name", "", "name in the driver's certificate (default: the host of the address)")
	flags.StringVar(&f.options.TokenFile, "token-file", "", "file with a bearer token for the audience lockstep, read again when it changes; needs --tls-ca")
}

// Check returns an error if the flags contradict each other or those of a driver inside this process.
func (f *Flags) Check(o *Options) error {
	t := f.options
	given := t.Cert+t.Key+t.CA+t.ServerName+t.TokenFile != ""
	switch {
	case given && f.Address == "":
		return exit.Usagef("--tls-cert, --tls-key, --tls-ca, --tls-server-name and --token-file need %s", f.flag)
	case given && f.options.CA == "":
		return exit.Usagef("TLS with %s needs --tls-ca", f.flag)
	case (f.options.Cert == "") != (f.options.Key == ""):
		return exit.Usagef("a client certificate for %s needs both --tls-cert and --tls-key", f.flag)
	}
	// The flags would have no effect on a driver elsewhere, which a user could take for a limit that holds.
	if i := slices.IndexFunc(DriverFlags, o.flags.Changed); f.Address != "" && i >= 0 {
		return exit.Usagef("--%s is for a driver inside this process: with %s give it to the driver there", DriverFlags[i], f.flag)
	}
	return nil
}

// Link is a connection to a driver.
type Link struct {
	*plugin.Client

	// Context ends with the command, and when a driver inside this process fails; context.Cause says why.
	Context context.Context //nolint:containedctx // one command uses it, at once
	// Close ends the connection, and the driver if it is inside this process.
	Close func() error
}

// Cause returns the error of a driver inside this process if it failed, since calls fail because of that, and otherwise err.
func (l *Link) Cause(err error) error { return dialCause(l.Context, err) }

func dialCause(ctx context.Context, err error) error {
	// An interrupted command has no other cause, so the error of its call says more.
	if why := context.Cause(ctx); why != nil && !errors.Is(why, context.Canceled) {
		return why
	}
	return err
}

// Connect connects a user to the driver at the address, or to one that it starts inside this process.
func (f *Flags) Connect(ctx context.Context, o *Options) (*Link, error) {
	if f.Address == "" {
		return Inside(ctx, o, forUser(plugin.DialOptions{}))
	}
	return f.dial(ctx, forUser(f.options))
}

func (f *Flags) dial(ctx context.Context, o plugin.DialOptions) (*Link, error) {
	client, err := plugin.Dial(ctx, f.Address, o)
	if errors.Is(err, plugin.ErrNeedsTLS) {
		return nil, exit.Usagef("%s is beyond this machine, so it needs TLS: give --tls-ca, and --token-file or --tls-cert and --tls-key", f.Address)
	}
	if err != nil {
		return nil, err
	}
	return &Link{Client: client, Context: ctx, Close: client.Close}, nil
}

// Reach connects a host to the driver at the address, or to one that it starts inside this process. The host need not wait for a driver that is
// deployed after it: until the driver is reached, calls fail. o.Logger must be set.
func (f *Flags) Reach(ctx context.Context, o *Options) (*Link, error) {
	if f.Address == "" {
		return Inside(ctx, o, plugin.DialOptions{})
	}
	client := plugin.NewPending(func(failed func(error)) *plugin.Client {
		for ctx.Err() == nil {
			link, err := f.dial(ctx, f.options)
			if err == nil {
				o.Logger.Info("driver reached", "address", f.Address, "name", link.Info().GetName(), "version", link.Info().GetVersion())
				return link.Client
			}
			failed(err)
			o.Logger.Warn("driver not reachable, retrying", "address", f.Address, "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(dialRetry):
			}
		}
		return nil
	})
	// The connection lasts as long as the process.
	return &Link{Client: client, Context: ctx, Close: client.Close}, nil
}
