// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/lockstep-rollouts/lockstep/lwsdriver/replay"
)

// Log formats.
const (
	logText = "text"
	logJSON = "json"
)

// options are the flags that every way of starting the program has, and what the commands share.
type options struct {
	kubeconfig  string
	kubeContext string
	namespace   string
	logFormat   string
	logLevel    string
	// record is the file to which the driver's decisions are appended. Empty: none.
	record string

	stdout    io.Writer
	stderr    io.Writer
	newDriver NewDriver

	// workload and readOnly keep the driver inside a command to that command's business. Zero: it serves hosts.
	workload types.NamespacedName
	readOnly bool
	// recorder gets the driver's decisions instead.
	recorder *replay.Recorder
	// silent keeps the driver from writing events that another one writes.
	silent bool

	// log is used instead of one made from the flags, where a host reads the log in a format of its own.
	log *slog.Logger
}

// addFlags registers the flags on a command line of either kind.
func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig file (default: $KUBECONFIG, ~/.kube/config, or the pod's service account)")
	flags.StringVar(&o.kubeContext, "context", "", "kubeconfig context (default: the current one)")
	flags.StringVarP(&o.namespace, "namespace", "n", "",
		"namespace of the workload (default: the context's); with serve, the only one to serve (default: all)")
	flags.StringVar(&o.logFormat, "log-format", logText, "log format on stderr: text or json")
	flags.StringVar(&o.logLevel, "log-level", "info", "lowest level to log: debug, info, warn or error")
	flags.StringVar(&o.record, "record", "", "file to append every decision of the driver to, for lockstep debug replay (default: none)")
}

// level reads --log-level.
func (o *options) level() (slog.Level, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return 0, usageErrorf("--log-level %q: want debug, info, warn or error", o.logLevel)
	}
	return level, nil
}

// logger returns the logger for people and log collectors, on stderr. client-go logs to it too.
func (o *options) logger() (*slog.Logger, error) {
	if o.log != nil {
		return o.log, nil
	}
	level, err := o.level()
	if err != nil {
		return nil, err
	}
	handlerOptions := &slog.HandlerOptions{Level: level}
	var handler slog.Handler
	switch o.logFormat {
	case logText:
		handler = slog.NewTextHandler(o.stderr, handlerOptions)
	case logJSON:
		handler = slog.NewJSONHandler(o.stderr, handlerOptions)
	default:
		return nil, usageErrorf("--log-format %q: want text or json", o.logFormat)
	}
	return captureKlog(slog.New(handler)), nil
}

// captureKlog sends client-go's log lines to logger, which it returns.
func captureKlog(logger *slog.Logger) *slog.Logger {
	klog.SetSlogLogger(logger)
	return logger
}

// clientConfig is the kubeconfig that the flags select, read when it is used.
func (o *options) clientConfig() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.kubeContext}
	overrides.Context.Namespace = o.namespace
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides)
}

// restConfig returns how to reach the API server.
func (o *options) restConfig() (*rest.Config, error) {
	config, err := o.clientConfig().ClientConfig()
	if err != nil {
		return nil, noConfig(err)
	}
	config.UserAgent = "lockstep/" + version()
	return config, nil
}

// workloadNamespace returns --namespace, or the namespace of the kubeconfig's context, or else the default one: a driver
// at an address may be reached without a kubeconfig.
func (o *options) workloadNamespace() (string, error) {
	if o.namespace != "" {
		return o.namespace, nil
	}
	namespace, _, err := o.clientConfig().Namespace()
	if clientcmd.IsEmptyConfig(err) {
		return metav1.NamespaceDefault, nil
	}
	if err != nil {
		return "", noConfig(err)
	}
	return namespace, nil
}

// noConfig says why there is no kubeconfig to work with.
func noConfig(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("there is no kubeconfig: give --kubeconfig or set KUBECONFIG")
	}
	return fmt.Errorf("load kubeconfig: %w", err)
}
