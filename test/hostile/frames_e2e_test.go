// Copyright The Lockstep Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"golang.org/x/time/rate"

	pb "github.com/lockstep-rollouts/lockstep/proto/lockstep/v1alpha1"
)

// wire is an HTTP/2 connection of an attacker who chooses its frames.
type wire struct {
	*http2.Framer

	raw  net.Conn
	out  *bufio.Writer
	next uint32 // stream
}

func (w *world) wire(ctx context.Context) (*wire, error) {
	dialer := tls.Dialer{Config: insecure(), NetDialer: &net.Dialer{Timeout: callDeadline}}
	raw, err := dialer.DialContext(ctx, "tcp", strings.TrimPrefix(w.address, "dns:///"))
	if err != nil {
		return nil, err
	}
	c := &wire{raw: raw, out: bufio.NewWriter(raw), next: 1}
	c.Framer = http2.NewFramer(c.out, bufio.NewReader(raw))
	_, _ = c.out.WriteString(http2.ClientPreface)
	_ = c.WriteSettings()
	return c, c.out.Flush()
}

// request writes the headers of a call on a new stream.
func (c *wire) request(method, token string, more ...hpack.HeaderField) (stream uint32) {
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range append([]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "lockstep"}, {Name: ":path", Value: method},
		{Name: "content-type", Value: "application/grpc"}, {Name: "te", Value: "trailers"}, {Name: "authorization", Value: "Bearer " + token},
	}, more...) {
		if field.Value == "Bearer " {
			continue
		}
		field.Sensitive = true // never in a table, of which each block would have one of its own
		_ = encoder.WriteField(field)
	}
	stream, c.next = c.next, c.next+2
	_ = c.headers(stream, block.Bytes())
	return stream
}

// largest is the size of a frame that every peer takes.
const largest = 16 << 10

// headers writes a block of headers in as many frames as it needs.
func (c *wire) headers(stream uint32, block []byte) error {
	part := block[:min(len(block), largest)]
	err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: part, EndHeaders: len(part) == len(block)})
	for block = block[len(part):]; len(block) > 0; block = block[len(part):] {
		part = block[:min(len(block), largest)]
		err = errors.Join(err, c.WriteContinuation(stream, len(part) == len(block), part))
	}
	return err
}

// data writes the body of a call.
func (c *wire) data(stream uint32, body []byte) (err error) {
	for len(body) > 0 && err == nil {
		part := body[:min(len(body), largest)]
		body = body[len(part):]
		err = c.WriteData(stream, len(body) == 0, part)
	}
	return err
}

// A flood writes one round of frames.
type flood func(*wire) error

// floods writes floods of several kinds over connections with and without a token. The server's answers are not read, or dropped.
func (w *world) floods(ctx context.Context, token string) string {
	method := pb.WorkloadDriver_CalculateBatchContext_FullMethodName
	resets := func(token string) flood {
		return func(c *wire) (err error) {
			for range 50 {
				err = c.WriteRSTStream(c.request(method, token), http2.ErrCodeCancel)
			}
			return err
		}
	}
	settings := func(c *wire) (err error) {
		for i := range uint32(100) {
			err = c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
		}
		return err
	}
	windows := func(c *wire) (err error) {
		stream := c.request(method, "")
		for range 100 {
			err = errors.Join(c.WriteWindowUpdate(0, 1), c.WriteWindowUpdate(stream, 1))
		}
		return err
	}
	pings := func(c *wire) error { return c.WritePing(false, [8]byte{}) }
	// Headers without an end.
	header := bytes.Repeat(append([]byte{0, 1, 'a', 0x7f, 0x11}, bytes.Repeat([]byte{'b'}, 144)...), 100)
	continuations := func(c *wire) error {
		if c.next == 1 {
			c.next += 2
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: header})
		}
		return c.WriteContinuation(1, false, header)
	}
	// A block that names one large header of the table thousands of times.
	var table bytes.Buffer
	_ = hpack.NewEncoder(&table).WriteField(hpack.HeaderField{Name: "x", Value: strings.Repeat("a", 4000)})
	block := append(table.Bytes(), bytes.Repeat([]byte{0x80 | 62}, 15000)...)
	headerBombs := func(c *wire) error {
		c.next += 2
		return c.headers(c.next-2, block)
	}
	zipBomb := zipped(60 << 20)
	zipBombs := func(c *wire) error {
		stream := c.request(method, token, hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
		return c.data(stream, zipBomb)
	}
	tokens := func(size int) flood {
		return func(c *wire) error {
			c.request(method, forged()+strings.Repeat("A", size))
			return nil
		}
	}
	all := []flood{resets(""), resets(token), resets(forged()), settings, windows, pings, continuations, headerBombs, zipBombs, tokens(20 << 10), tokens(60 << 10)}
	var rounds atomic.Int64
	together(ctx, 2*len(all), func(ctx context.Context, i int) {
		c, err := w.wire(ctx)
		if err != nil {
			return
		}
		defer c.raw.Close()
		defer context.AfterFunc(ctx, func() { _ = c.raw.Close() })()
		if i%2 == 0 {
			go func() { _, _ = io.Copy(io.Discard, c.raw) }()
		}
		// What frames cost the attacker, on the same machine, must not count against the driver.
		limiter := rate.NewLimiter(200, 1)
		for limiter.Wait(ctx) == nil && c.raw.SetWriteDeadline(time.Now().Add(callDeadline)) == nil && all[i/2](c) == nil && c.out.Flush() == nil {
			rounds.Add(1)
		}
	})
	return fmt.Sprintf("%d rounds", rounds.Load())
}

// zipped returns a message of so many zeros, compressed.
func zipped(size int64) []byte {
	var packed bytes.Buffer
	zip, _ := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	_, _ = io.CopyN(zip, zeros{}, size)
	_ = zip.Close()
	return append(binary.BigEndian.AppendUint32([]byte{1}, uint32(packed.Len())), packed.Bytes()...)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
