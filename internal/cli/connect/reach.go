// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/lockstep-rollouts/lockstep/internal/server"
)

const (
	// reachTimeout bounds one question to the API server.
	reachTimeout = 3 * time.Second
	// reachPause separates two, and is how long a command is silent: by then a driver has filled its caches.
	reachPause = 1500 * time.Millisecond
)

// UnreachedError says that the API server gives no answer, not even an error.
type UnreachedError struct {
	// Server is its address.
	Server string
	// Err is why.
	Err error
}

func (e *UnreachedError) Error() string {
	return fmt.Sprintf("the API server at %s can't be reached: %v", e.Server, e.Err)
}

func (e *UnreachedError) Unwrap() error { return e.Err }

// Reach returns nil if the API server answers, whatever it answers, and otherwise an *UnreachedError, or one of the kubeconfig.
func (o *Options) Reach(ctx context.Context) error {
	config, err := o.RESTConfig()
	if err != nil {
		return err
	}
	return checkReachable(ctx, config)
}

func checkReachable(ctx context.Context, config *rest.Config) error {
	config = rest.CopyConfig(config)
	config.Timeout = reachTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create client: %w", err)
	}
	_, err = client.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if _, answered := errors.AsType[*apierrors.StatusError](err); err == nil || answered {
		return nil
	}
	// The URL of the question says nothing beside the server's.
	if failed, ok := errors.AsType[*url.Error](err); ok {
		err = failed.Err
	}
	return &UnreachedError{Server: config.Host, Err: err}
}

// awaitReady says what a command waits for if its driver is not ready soon. If the API server can't be reached for o.GiveUp, it calls fail.
func (o *Options) awaitReady(ctx context.Context, config *rest.Config, driver server.Driver, fail context.CancelCauseFunc) {
	began, said := time.Now(), false
	_ = wait.PollUntilContextCancel(ctx, reachPause, false, func(ctx context.Context) (done bool, _ error) {
		waits := driver.Ready()
		if waits == nil {
			return true, nil
		}
		if !said {
			said = true
			fmt.Fprintf(o.Stderr, "waiting for the API server at %s: %s\n", config.Host, status.Convert(waits).Message())
		}
		if o.GiveUp == 0 {
			return true, nil // its calls are retried
		}
		err := checkReachable(ctx, config)
		over := time.Since(began) >= o.GiveUp
		if err != nil && over {
			fail(err)
		}
		return err == nil || over, nil // if it answers, so will the driver
	})
}
