//go:build !linux

package cluster

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

var errPlatform = errors.New("a cluster needs Linux: no other system promises that children end with their parent")

func processAttributes() *syscall.SysProcAttr { return nil }

func killGroup(int) error { return errPlatform }

func tryLock(*os.File) (bool, error) { return false, errPlatform }

func claimPort(context.Context, int) (net.Listener, error) { return nil, errPlatform }

func memoryAvailable() int { return 0 }
