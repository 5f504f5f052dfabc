package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fileConfig is a sidecar with its marks in a file.
const fileConfig = `
version: 1
id: test
listen: 127.0.0.1:0
admin: { listen: "127.0.0.1:0" }
upstream: { url: "${UPSTREAM}", response_timeout: 10s }
store: { file: { path: "${MARKS}", timeout: 10s } }
guards:
  - name: doc
    mark: { key_type: text }
    order: admissions
routes:
  - { name: write, match: { methods: [PUT], path: "/docs/{id}" }, guard: doc, admit: newer, key: { path: id } }
  - { name: again, match: { methods: [POST], path: "/docs/{id}" }, guard: doc, admit: newer_or_same, key: { path: id } }
  - { name: reads, match: { methods: [GET] }, pass: true }
shutdown: { delay: 1ms, grace: 10s }
`

// fileSidecar knows where a sidecar with a file keeps everything, so that it can be started again.
type fileSidecar struct {
	*sidecar
	config string
	env    map[string]string
}

func newFileSidecar(t *testing.T, upstream string) *fileSidecar {
	t.Helper()
	f := &fileSidecar{config: write(t, fileConfig), env: map[string]string{"UPSTREAM": upstream, "MARKS": filepath.Join(t.TempDir(), "marks.db")}}
	code, output := run(t, f.env, "init", "-c", f.config)
	require.Equal(t, 0, code, output)
	return f
}

func (f *fileSidecar) start(t *testing.T) {
	t.Helper()
	f.sidecar = &sidecar{Process: spawn(t, f.env, "run", "-c", f.config)}
	f.listening(t)
}

func (f *fileSidecar) put(t *testing.T, key string, token int64) (status int, body string) {
	t.Helper()
	return ask(t, http.MethodPut, "http://"+f.api+"/docs/"+key, strconv.FormatInt(token, 10))
}

// mark reads a key's mark on the admin listener.
func (f *fileSidecar) mark(t *testing.T, key string) int64 {
	t.Helper()
	status, page := f.adminPage(t, "/marks?guard=doc&key="+key)
	require.Equal(t, http.StatusOK, status, page)
	var answer struct{ Token int64 }
	require.NoError(t, json.Unmarshal([]byte(page), &answer))
	return answer.Token
}

func TestSidecarWithAFileNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	f.start(t)
	require.True(t, f.ready(t))
	status, body := f.put(t, "a", 34)
	require.Equal(t, http.StatusOK, status, body)
	status, body = f.put(t, "a", 33)
	require.Equal(t, http.StatusConflict, status, body)
	require.Contains(t, body, `"highestToken":34`)
	promises := f.Events("guard_promise")
	require.Len(t, promises, 1)
	require.Contains(t, promises[0].Text("@message"), "no other sidecar can use the same file")

	code, output := run(t, f.env, "run", "-c", f.config)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "another process has the mark file open")
	code, output = run(t, f.env, "init", "-c", f.config)
	require.Equal(t, 1, code, output)
	require.Contains(t, output, "exists already")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, f.Stop(ctx))
	f.start(t)
	status, body = f.put(t, "a", 33)
	require.Equal(t, http.StatusConflict, status, "the mark is there after a restart: %s", body)
}

func TestMarkFileThatIsNotThereOrNotWholeStopsTheStart(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, "http://127.0.0.1:1")
	path := f.env["MARKS"]
	refuses := func(want string) {
		code, output := run(t, f.env, "run", "-c", f.config)
		require.Equal(t, 1, code, output)
		require.Contains(t, output, want)
		require.NotContains(t, output, `"event":"listening"`)
	}
	require.NoError(t, os.Truncate(path, 5000))
	refuses("the mark file is damaged")
	require.NoError(t, os.Truncate(path, 0))
	refuses("the mark file is damaged")
	require.NoError(t, os.Remove(path))
	refuses("sidecar init")
	require.NoFileExists(t, path, "a start makes none")
}

// The process is killed at random moments while many clients write. Whatever a client was told to be admitted is in the marks afterwards.
func TestMarksInAFileNeverGoBackWhenTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	f := newFileSidecar(t, resource(t, nil))
	const keys = 12
	rounds := 8
	if text := os.Getenv("FENCELINE_KILLS"); text != "" { // make test-long
		var err error
		rounds, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	var admitted [keys]int64 // by a client that got its answer
	var next [keys]int64     // tokens that were tried
	for round := range rounds {
		f.start(t)
		for k := range keys {
			require.GreaterOrEqual(t, f.mark(t, strconv.Itoa(k)), admitted[k], "round %d, key %d", round, k)
		}
		var clients sync.WaitGroup
		var answered atomic.Int64
		for k := range keys {
			clients.Go(func() {
				for {
					next[k]++
					status, err := putOnce(f.api, strconv.Itoa(k), next[k])
					if err != nil {
						return // it was killed
					}
					if status == http.StatusOK {
						admitted[k] = next[k]
						answered.Add(1)
					}
				}
			})
		}
		f.eventually(t, "there is load", func() bool { return answered.Load() > 15 })
		wait(t, time.Duration(rand.IntN(200))*time.Millisecond)
		require.NoError(t, syscall.Kill(f.PID(), syscall.SIGKILL))
		clients.Wait()
	}
	f.start(t)
	total := int64(0)
	for k := range keys {
		require.GreaterOrEqual(t, f.mark(t, strconv.Itoa(k)), admitted[k])
		if admitted[k] > 1 {
			status, body := f.put(t, strconv.Itoa(k), admitted[k]-1)
			require.Equal(t, http.StatusConflict, status, body)
		}
		total += admitted[k]
	}
	t.Logf("%d admissions over %d kills", total, rounds)
}

// putOnce sends one request; an error means that there was no answer.
func putOnce(address, key string, token int64) (int, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPut, fmt.Sprintf("http://%s/docs/%s", address, key), strings.NewReader("text"))
	if err != nil {
		return 0, err
	}
	request.Header.Set("X-Fencing-Token", strconv.FormatInt(token, 10))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// wait lets time pass; nothing else would do where the moment itself is what matters.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}
