// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Package connect has the flags of every command, and connects a command to its cluster and its driver: one at an address,
// or one inside the process.
//
//	link, err := flags.Connect(ctx, options) // --address, or else a driver inside
//	response, err := link.Adopt(link.Context, request)
//	err = link.Close()
package connect

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/lockstep-rollouts/lockstep/internal/cli/exit"
	"github.com/lockstep-rollouts/lockstep/lwsdriver"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/observe"
	"github.com/lockstep-rollouts/lockstep/lwsdriver/record"
	"github.com/lockstep-rollouts/lockstep/plugin"
	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// Options are the flags of every command, the streams of the process, and the driver that is linked into it.
type Options struct {
	// Options are those of a driver inside this process. The zero value is for hosts: all workloads, with events. Logger is
	// set only for a host that reads its own log format; otherwise the flags choose a logger.
	lwsdriver.Options

	// Stdout gets results, Stderr logs and errors.
	Stdout, Stderr io.Writer
	// NewDriver makes a driver.
	NewDriver NewDriver
	// LogLevel is the value of --log-level.
	LogLevel string
	// GiveUp is how long a command waits for the first answer of the API server. 0: as long as it retries its calls.
	GiveUp time.Duration

	kubeconfig  string
	kubeContext string
	logFormat   string
	// record is the file that the driver's decisions are appended to. Empty means none.
	record string
	// quiet mutes the logs of libraries: the errors of the driver's calls, and its states, say the same.
	quiet bool
	// command: the driver is that of a command, which is to say what it waits for.
	command bool
	// flags are those of AddFlags.
	flags *pflag.FlagSet
}

// DriverFlags are the flags that only a driver inside this process, or launched by it, has.
var DriverFlags = []string{"probe-host-network", "max-groups-in-flight", "max-progress-deadline", "record", "canary-metadata-prefix"}

// AddFlags registers the flags.
func (o *Options) AddFlags(to *pflag.FlagSet) {
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig file (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&o.kubeContext, "context", "", "kubeconfig context (default: the current one)")
	flags.StringVarP(&o.Namespace, "namespace", "n", "",
		"namespace of the workload (default: the context's); of servers, the only one to serve (default: all)")
	flags.StringVar(&o.logFormat, "log-format", "text", "log format on stderr: text or json")
	flags.StringVar(&o.LogLevel, "log-level", "info", "minimum level to log: debug, info, warn or error")
	flags.BoolVar(&o.ProbeHostNetwork, "probe-host-network", false,
		"also send warm-up and drain requests to leaders with hostNetwork")
	flags.IntVar(&o.MaxGroupsInFlight, "max-groups-in-flight", 0,
		"how many groups all releases together may create or replace at once (default: no limit)")
	flags.DurationVar(&o.Limits.ProgressDeadline, "max-progress-deadline", record.DefaultMaxProgressDeadline,
		"longest progress deadline that a release may have")
	flags.StringVar(&o.record, "record", "", "file to append the driver's decisions to, for lockstep debug replay (default: none)")
	flags.StringArrayVar(&o.Limits.Metadata, "canary-metadata-prefix", nil,
		"prefix of keys that a policy's canary_leader_metadata may have; may be repeated (default: none is allowed)")
	to.AddFlagSet(flags)
	o.flags = flags
}

// level reads --log-level.
func (o *Options) level() (level slog.Level, err error) {
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return 0, exit.Usagef("--log-level %q: want debug, info, warn or error", o.LogLevel)
	}
	return level, nil
}

// NewLogger returns Logger, or else the one that the flags choose. client-go logs to it, too.
func (o *Options) NewLogger() (*slog.Logger, error) {
	if o.Logger != nil {
		return o.Logger, nil
	}
	level, err := o.level()
	if err != nil {
		return nil, err
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch o.logFormat {
	case "text":
		handler = slog.NewTextHandler(o.Stderr, handlerOptions)
	case "json":
		handler = slog.NewJSONHandler(o.Stderr, handlerOptions)
	default:
		return nil, exit.Usagef("--log-format %q: want text or json", o.logFormat)
	}
	if o.quiet {
		captureLibraries(slog.New(slog.DiscardHandler))
		return slog.New(handler), nil
	}
	return captureLibraries(slog.New(handler)), nil
}

// NewPluginLogger returns a logger in the format that hosts read from their plugins. It ignores --log-format.
func (o *Options) NewPluginLogger() (*slog.Logger, error) {
	level, err := o.level()
	if err != nil {
		return nil, err
	}
	return captureLibraries(slog.New(plugin.NewLogHandler(o.Stderr, level))), nil
}

// clientConfig returns the kubeconfig that the flags choose, which is read when it is used.
func (o *Options) clientConfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.kubeContext}
	overrides.Context.Namespace = o.Namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// RESTConfig returns the client configuration for the API server.
func (o *Options) RESTConfig() (*rest.Config, error) {
	config, err := o.clientConfig().ClientConfig()
	if err != nil {
		return nil, noConfig(err)
	}
	config.UserAgent = "lockstep/" + o.Version
	config.QPS, config.Burst = lwsdriver.DefaultQPS, 2*lwsdriver.DefaultQPS // of hosts, too
	return config, nil
}

// ForCommand returns the options of a driver inside a command: for one namespace and one workload, or for all where these
// are empty. Without --log-level it logs errors only, once it has started: the command itself shows the states of a release.
func (o *Options) ForCommand(flags *pflag.FlagSet, namespace, name string) *Options {
	inside := *o
	inside.Namespace, inside.command = namespace, true
	if name != "" {
		inside.Workload = types.NamespacedName{Namespace: namespace, Name: name}
	}
	// The command itself shows what a release does, and a driver's lines would tear the status that is redrawn.
	if !flags.Changed("log-level") {
		inside.LogLevel, inside.quiet = "error", true
	}
	return &inside
}

// WorkloadNamespace returns --namespace, or the namespace of the kubeconfig's context, or "default" without a kubeconfig,
// which a driver at an address does not need.
func (o *Options) WorkloadNamespace() (string, error) {
	if o.Namespace != "" {
		return o.Namespace, nil
	}
	namespace, _, err := o.clientConfig().Namespace()
	// A driver at an address needs no kubeconfig, so a missing one is no error here.
	if clientcmd.IsEmptyConfig(err) {
		return metav1.NamespaceDefault, nil
	}
	if err != nil {
		return "", noConfig(err)
	}
	return namespace, nil
}

func noConfig(err error) error {
	switch files := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); {
	case clientcmd.IsEmptyConfig(err) && files != "":
		return fmt.Errorf("no kubeconfig found: KUBECONFIG names %s, which is missing or empty: correct it, or give --kubeconfig", files)
	case clientcmd.IsEmptyConfig(err):
		return errors.New("no kubeconfig found: give --kubeconfig or set KUBECONFIG")
	}
	return fmt.Errorf("load kubeconfig: %w", err)
}

// toLibraries sets the logger of client-go once: it may not be replaced while another goroutine logs.
var toLibraries sync.Once

// captureLibraries sends the log lines of client-go to the first logger, which is that of the process. It returns the logger.
func captureLibraries(logger *slog.Logger) *slog.Logger {
	toLibraries.Do(func() { klog.SetSlogLogger(logger) })
	return logger
}

// Workloads returns a client of the metadata of workloads of the kind and in the namespace of one.
func (o *Options) Workloads(ref *pb.WorkloadRef) (metadata.ResourceInterface, error) {
	config, err := o.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	resource := lws.GroupVersion.WithResource("leaderworkersets")
	if ref.GetKind() == observe.KindSet {
		resource = observe.SetsResource
	}
	return client.Resource(resource).Namespace(ref.GetNamespace()), nil
}
