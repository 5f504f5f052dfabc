package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/process"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
)

const (
	manyWaiters = 10_000
	waitedKeys  = 100
	// waitersRSS bounds lockd's resident memory with all of them waiting.
	waitersRSS = 512 << 20
)

// crowd is many raw connections, each with an acquire that waits.
type crowd struct {
	address string
	session string
	conns   [manyWaiters]net.Conn
	waiting sync.WaitGroup
	mu      sync.Mutex
	granted []string // keys
	odd     []string // answers that are neither a grant nor "contended"
}

func (c *crowd) key(i int) string { return fmt.Sprint("hot:", i%waitedKeys) }

func (c *crowd) join(ctx context.Context, i int) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
	if err != nil {
		return err
	}
	c.conns[i] = conn
	if err := c.ask(i); err != nil {
		return err
	}
	c.waiting.Go(func() { c.wait(i) })
	return nil
}

func (c *crowd) ask(i int) error {
	body := fmt.Sprintf(`{"sessionId":%q,"waitMillis":30000}`, c.session)
	_, err := fmt.Fprintf(c.conns[i], "POST /v1/locks/%s/acquire HTTP/1.1\r\nHost: lockd\r\nX-Owner-Id: crowd\r\nContent-Length: %d\r\n\r\n%s", c.key(i), len(body), body)
	return err
}

// wait asks again when its time is up, since on a busy machine it can take longer than that until all have joined. It ends with
// a grant, or with the connection.
func (c *crowd) wait(i int) {
	for {
		response, err := http.ReadResponse(bufio.NewReaderSize(c.conns[i], 1024), nil)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode == http.StatusConflict && c.ask(i) == nil {
			continue
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if response.StatusCode == http.StatusOK {
			c.granted = append(c.granted, c.key(i))
		} else {
			c.odd = append(c.odd, response.Status)
		}
		return
	}
}

func (c *crowd) leave() {
	for _, conn := range c.conns {
		if conn != nil {
			_ = conn.Close()
		}
	}
	c.waiting.Wait()
}

func TestTenThousandWaitersAreHeldInBoundedMemoryAndTheNextIsRefused(t *testing.T) {
	t.Parallel()
	database := pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp")
	// The program as it is built for use: the race detector multiplies its memory.
	p := process.StartForTest(t, "fenceline/lockd", []string{
		"serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--max-waiters", strconv.Itoa(manyWaiters), "--store-timeout", "10s",
	}, "LOCKD_DATABASE_URL="+database)
	api, admin := urls(t, p)
	holder := client(t, api)
	session, err := holder.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	var tokens [waitedKeys]int64
	c := &crowd{address: strings.TrimPrefix(api, "http://")}
	for i := range waitedKeys {
		grant, err := holder.Acquire(t.Context(), c.key(i), session.SessionID, 5*time.Minute)
		require.NoError(t, err)
		tokens[i] = grant.FencingToken
	}
	others, err := lockclient.New(api, "crowd", nil)
	require.NoError(t, err)
	theirs, err := others.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	c.session = theirs.SessionID
	t.Cleanup(c.leave)
	var joining errgroup.Group
	joining.SetLimit(64)
	for i := range manyWaiters {
		joining.Go(func() error { return c.join(t.Context(), i) })
	}
	require.NoError(t, joining.Wait())
	waitersAre(t, admin, manyWaiters)
	rss := residentBytes(t, p.PID())
	t.Logf("%d waiters: %d MiB resident", manyWaiters, rss>>20)
	require.Less(t, rss, int64(waitersRSS))

	status, refusal := oneMore(t, api, "hot:0", c.session)
	require.Equal(t, 429, status)
	require.Equal(t, lockapi.CodeContentionExceeded, refusal.Code)
	require.Positive(t, refusal.RetryAfterMillis)

	// The others are still served: a release is handed on, to one of the crowd and once.
	_, err = holder.Release(t.Context(), c.key(7), lock.Token(tokens[7]))
	require.NoError(t, err)
	waitersAre(t, admin, manyWaiters-1)
	info, err := holder.Inspect(t.Context(), c.key(7))
	require.NoError(t, err)
	require.Equal(t, "crowd", info.OwnerID)
	require.Greater(t, info.FencingToken, tokens[7])
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.granted) > 0
	}, 20*time.Second, 10*time.Millisecond)
	c.leave()
	require.Equal(t, []string{c.key(7)}, c.granted)
	require.Empty(t, c.odd)
	waitersAre(t, admin, 0)
}

// oneMore sends an acquire that is willing to wait, and wants it refused.
func oneMore(t *testing.T, api, key, session string) (status int, refusal lockapi.Error) {
	t.Helper()
	body := fmt.Sprintf(`{"sessionId":%q,"waitMillis":30000}`, session)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api+"/v1/locks/"+key+"/acquire", strings.NewReader(body))
	require.NoError(t, err)
	request.Header.Set("X-Owner-Id", "crowd")
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.NoError(t, json.NewDecoder(response.Body).Decode(&refusal))
	return response.StatusCode, refusal
}

var waitersMetric = regexp.MustCompile(`(?m)^lock_waiters_current\{backend="pg"\} (\S+)$`)

func waitersAre(t *testing.T, admin string, n int) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, admin+"/metrics", nil)
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return false
		}
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return false
		}
		if match := waitersMetric.FindSubmatch(text); match != nil {
			last = string(match[1])
		}
		value, err := strconv.ParseFloat(last, 64)
		return err == nil && int(value) == n
	}, 60*time.Second, 50*time.Millisecond, "want %d waiters", n)
}

// residentBytes reads a process's resident memory.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("VmRSS:")); ok {
			kib, err := strconv.ParseInt(strings.Fields(string(rest))[0], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	require.Fail(t, "no VmRSS")
	return 0
}
