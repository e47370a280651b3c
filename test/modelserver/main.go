// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

// Command modelserver behaves like a model server of several hosts, without a model. It is the image of leaders and workers.
//
// Workers connect to their leader. A leader that has all of them "loads" for $LOAD and then serves completions as OpenAI's API
// streams them, /health and the metrics of vLLM. On SIGTERM it finishes what it has begun and exits, and a worker lets it finish.
//
//	POST /v1/completions {"stream": true, "max_tokens": 20}  a token each $TOKEN (200ms)
//	POST /fail?how=exit|hang|memory                          fail
//
// Each answer has the pod that gave it as JSON in the header of [podanswer.Header].
package main

import (
	"cmp"
	"context"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/lockstep-rollouts/lockstep/test/podanswer"
)

// LWS sets these variables. Its API package would bring half of Kubernetes into the image.
const (
	leaderAddress = "LWS_LEADER_ADDRESS"
	groupSize     = "LWS_GROUP_SIZE"
	workerIndex   = "LWS_WORKER_INDEX"
)

// groupPort is where a leader accepts its workers.
const groupPort = 8081

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	load, err := duration("LOAD", "0s")
	if err != nil {
		return err
	}
	token, err := duration("TOKEN", "200ms")
	if err != nil {
		return err
	}
	m := newModel(token)
	leads := os.Getenv(workerIndex) == "0" || os.Getenv(leaderAddress) == ""
	followed := make(chan struct{})
	if leads {
		size, err := strconv.Atoi(cmp.Or(os.Getenv(groupSize), "1"))
		if err != nil {
			return fmt.Errorf("%s: %w", groupSize, err)
		}
		go m.lead(size-1, load)
	} else {
		m.answer.Role = podanswer.RoleWorker
		go func() {
			defer close(followed)
			m.follow(ctx, net.JoinHostPort(os.Getenv(leaderAddress), strconv.Itoa(groupPort)))
		}()
	}
	server := &http.Server{Addr: ":" + strconv.Itoa(podanswer.Port), Handler: m.handler(), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.ListenAndServe() }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Print("terminating: finishing requests in flight")
	m.terminating.Store(true)
	if !leads {
		<-followed
		return nil
	}
	// The pod's grace period bounds how long requests may take.
	return server.Shutdown(context.Background())
}

func duration(name, missing string) (time.Duration, error) {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(name), missing))
	if err != nil {
		return 0, fmt.Errorf("$%s: %w", name, err)
	}
	return d, nil
}
