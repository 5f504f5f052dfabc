package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/process"
)

// volumeConfig passes everything.
const volumeConfig = `
version: 1
id: test
listen: 127.0.0.1:0
admin: { listen: "127.0.0.1:0" }
upstream: { url: "${UPSTREAM}", response_timeout: 60s }
store: { file: { path: "${MARKS}" } }
guards:
  - { name: doc, mark: { key_type: text }, order: admissions }
routes:
  - { name: write, match: { methods: [PUT], path: "/docs/{id}" }, guard: doc, admit: newer_or_same, key: { path: id } }
  - { name: all, match: { methods: [GET, POST], path: "/{what}" }, pass: true }
limits: { connections: 11000 }
shutdown: { delay: 1ms, grace: 10s }
`

// built runs the program as it is built for use: the race detector multiplies its memory.
func built(t *testing.T, upstream string) *sidecar {
	t.Helper()
	path := write(t, volumeConfig)
	env := []string{"UPSTREAM=" + upstream, "MARKS=" + filepath.Join(t.TempDir(), "marks.db")}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	code, err := process.StartForTest(t, "fenceline/sidecar", []string{"init", "-c", path}, env...).Wait(ctx)
	require.NoError(t, err)
	require.Zero(t, code)
	s := &sidecar{Process: process.StartForTest(t, "fenceline/sidecar", []string{"run", "-c", path}, env...)}
	s.listening(t)
	return s
}

// resident reads a process's resident memory and its highest ever, in bytes.
func resident(t *testing.T, pid int) (now, peak int64) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	read := func(name string) int64 {
		_, after, found := bytes.Cut(status, []byte(name+":"))
		require.True(t, found, name)
		kib, err := strconv.ParseInt(strings.Fields(string(after))[0], 10, 64)
		require.NoError(t, err)
		return kib << 10
	}
	return read("VmRSS"), read("VmHWM")
}

const (
	gigabyte  = 1 << 30
	maxGrowth = 32 << 20
)

// endless gives as many zeros as anybody wants.
type endless struct{}

func (endless) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestGigabyteEachWayTakesNoMemory(t *testing.T) {
	t.Parallel()
	s := built(t, resource(t, func(w http.ResponseWriter, r *http.Request) {
		n, err := io.Copy(io.Discard, r.Body)
		if err != nil {
			return
		}
		if r.Method == http.MethodPost {
			_, _ = fmt.Fprint(w, n)
			return
		}
		size := int64(gigabyte)
		if r.URL.Path == "/length" {
			size /= 4
			w.Header().Set("Content-Length", strconv.FormatInt(size, 10))
		}
		_, _ = io.CopyN(w, endless{}, size)
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	do := func(method, path string, body io.Reader, length int64) *http.Response {
		request, err := http.NewRequestWithContext(ctx, method, "http://"+s.api+path, body)
		require.NoError(t, err)
		request.ContentLength = length
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		return response
	}
	warm := do(http.MethodPost, "/warm", io.LimitReader(endless{}, 1<<20), 1<<20)
	require.NoError(t, warm.Body.Close())
	before, _ := resident(t, s.PID())

	for size, announced := range map[int64]int64{gigabyte: gigabyte, gigabyte / 4: -1} { // with a length, and in chunks
		up := do(http.MethodPost, "/up", io.LimitReader(endless{}, size), announced)
		got, err := io.ReadAll(up.Body)
		require.NoError(t, err)
		require.NoError(t, up.Body.Close())
		require.Equal(t, strconv.FormatInt(size, 10), string(got))
	}
	for path, size := range map[string]int64{"/length": gigabyte / 4, "/chunks": gigabyte} {
		down := do(http.MethodGet, path, nil, 0)
		n, err := io.Copy(io.Discard, down.Body)
		require.NoError(t, err)
		require.NoError(t, down.Body.Close())
		require.Equal(t, size, n)
	}
	_, peak := resident(t, s.PID())
	t.Logf("2.5 GiB through %d MiB; grown by %d MiB at most", before>>20, (peak-before)>>20)
	require.Less(t, peak-before, int64(maxGrowth))
}

// Ten thousand clients that hold a connection and do nothing take bounded memory and keep nobody else waiting.
func TestTenThousandIdleConnectionsDisturbNobody(t *testing.T) {
	t.Parallel()
	const idle = 10_000
	s := built(t, resource(t, nil))
	before, _ := resident(t, s.PID())
	conns := make([]net.Conn, idle)
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	var opening errgroup.Group
	opening.SetLimit(32)
	for i := range conns {
		opening.Go(func() (err error) {
			if conns[i], err = (&net.Dialer{}).DialContext(t.Context(), "tcp", s.api); err != nil {
				return err
			}
			if i%2 == 0 {
				return nil // one half has never said anything, the other has had an answer
			}
			if _, err := io.WriteString(conns[i], "GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
				return err
			}
			response, err := http.ReadResponse(bufio.NewReader(conns[i]), nil)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, response.Body)
			return errors.Join(err, response.Body.Close())
		})
	}
	require.NoError(t, opening.Wait())
	now, _ := resident(t, s.PID())
	t.Logf("%d idle connections: %d MiB more", idle, (now-before)>>20)
	require.Less(t, now-before, int64(512<<20))
	for i := range 1100 { // up to the limit, and some more
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.api)
		require.NoError(t, err)
		conns = append(conns, c)
		if i < 1000 {
			continue
		}
		require.NoError(t, c.SetReadDeadline(time.Now().Add(patience)))
		response, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err == nil { // the first of them are told so in words
			require.Equal(t, http.StatusServiceUnavailable, response.StatusCode)
			require.NoError(t, response.Body.Close())
		}
	}
	for _, c := range conns[:100] {
		require.NoError(t, c.Close())
	}
	s.eventually(t, "closed connections give their places back", func() bool {
		status, _ := ask(t, http.MethodPut, "http://"+s.api+"/docs/7", "1")
		return status == http.StatusOK
	})
	for token := range 20 {
		status, body := ask(t, http.MethodPut, "http://"+s.api+"/docs/7", strconv.Itoa(token+1))
		require.Equal(t, http.StatusOK, status, body)
	}
}
