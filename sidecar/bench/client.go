package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client is one connection that sends prepared bytes and reads answers. It does as little as can be done, since it shares the processors with
// what is measured.
type client struct {
	conn   net.Conn
	reader *bufio.Reader
	buffer []byte
}

func dial(ctx context.Context, address string) (*client, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, reader: bufio.NewReaderSize(conn, 8<<10)}, nil
}

const answerTimeout = 20 * time.Second

// do sends a request and returns its answer's status.
func (c *client) do(write func([]byte) []byte) (int, error) {
	c.buffer = write(c.buffer[:0])
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return 0, err
	}
	if _, err := c.conn.Write(c.buffer); err != nil {
		return 0, err
	}
	return c.read()
}

var contentLength = []byte("content-length:") //nolint:gochecknoglobals // a constant

// read takes one answer with a length. The spelling of names is whatever each server likes.
func (c *client) read() (status int, err error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, fmt.Errorf("no answer: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, fmt.Errorf("no status: %q", line)
	}
	length := -1
	for {
		if line, err = c.reader.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return 0, err
			}
		}
	}
	if length < 0 && status != 204 {
		return 0, fmt.Errorf("an answer without a length: %d", status)
	}
	_, err = io.CopyN(io.Discard, c.reader, int64(max(length, 0)))
	return status, err
}
