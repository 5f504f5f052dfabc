package main

import (
	"math/rand/v2"
	"strconv"
	"sync/atomic"
)

// maker gives each worker its requests. They are HTTP/1.1 as a client sends them, with a small body where something is written.
type maker = func(worker int) func([]byte) []byte

func get(int) func([]byte) []byte {
	return func(b []byte) []byte { return append(b, "GET /read HTTP/1.1\r\nHost: bench\r\n\r\n"...) }
}

func put(b []byte, key, token int64) []byte {
	b = append(b, "PUT "+thingsPath...)
	b = appendKey(b, key)
	b = append(b, " HTTP/1.1\r\nHost: bench\r\nX-Fencing-Token: "...)
	b = strconv.AppendInt(b, token, 10)
	return append(b, "\r\nX-Owner-Id: bench\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\nbody"...)
}

func appendKey(b []byte, key int64) []byte { return strconv.AppendInt(append(b, 'k'), key, 10) }

// tokens only grow, over all contestants and turns, so every one is new for its key. They begin above the marks that tables are filled with.
var tokens atomic.Int64 //nolint:gochecknoglobals // one source for all

const firstToken = 1000

// newTokens writes to random keys of so many, each time with a new token.
func newTokens(keys int) maker {
	return func(int) func([]byte) []byte {
		return func(b []byte) []byte { return put(b, rand.Int64N(int64(keys)), firstToken+tokens.Add(1)) } //nolint:gosec // which key it is needn't be secret
	}
}

// eachOnce writes to one key after the other.
func eachOnce(next *atomic.Int64) maker {
	return func(int) func([]byte) []byte {
		return func(b []byte) []byte { return put(b, next.Add(1), firstToken+tokens.Add(1)) }
	}
}

// same writes to a key of the worker's own, with one token for ever.
func same(worker int) func([]byte) []byte {
	return func(b []byte) []byte { return put(b, int64(worker), sameToken) }
}

// stale does so with a token below it.
func stale(worker int) func([]byte) []byte {
	return func(b []byte) []byte { return put(b, int64(worker), sameToken-1) }
}

const sameToken = 500
