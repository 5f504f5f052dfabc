package main

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/lockd/lockapi"
	"fenceline/migrations"
)

// overloadRSS bounds lockd's resident memory under each of these, with the race detector too.
const overloadRSS = 256 << 20

// connect opens a raw connection to lockd.
func connect(t *testing.T, base string) net.Conn {
	t.Helper()
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

// ended waits for the server to end a connection, and returns what it still said.
func ended(t *testing.T, connection net.Conn, within time.Duration) string {
	t.Helper()
	require.NoError(t, connection.SetReadDeadline(time.Now().Add(within)))
	said, err := io.ReadAll(connection)
	if err != nil {
		require.ErrorIs(t, err, syscall.ECONNRESET, "the connection is still open")
	}
	return string(said)
}

// A client that sends requests and never reads an answer holds one connection, for as long as an answer may take, and no more.
func TestClientThatNeverReadsHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	p, base, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	const clients = 20
	var deaf errgroup.Group
	var cut atomic.Int64
	for range clients {
		connection := connect(t, base)
		deaf.Go(func() error {
			// Answers of 40 KB each soon fill every buffer on the way; then lockd can't write and stops reading.
			requests := []byte(strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: lockd\r\n\r\n", 1000))
			if err := connection.SetWriteDeadline(time.Now().Add(40 * time.Second)); err != nil {
				return err
			}
			for range 1000 {
				_, err := connection.Write(requests)
				switch {
				case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
					cut.Add(1)
					return nil
				case err != nil:
					return err
				}
			}
			return errors.New("lockd took everything")
		})
	}
	c := client(t, base)
	session, err := c.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	for cut.Load() < clients/2 {
		start := time.Now()
		_, err := c.Heartbeat(t.Context(), session.SessionID)
		require.NoError(t, err)
		require.Less(t, time.Since(start), 5*time.Second, "others are served meanwhile")
		<-time.After(20 * time.Millisecond)
	}
	rss := residentBytes(t, p.PID())
	t.Logf("%d clients that never read: %d MiB resident", clients, rss>>20)
	require.Less(t, rss, int64(overloadRSS))
	require.NoError(t, deaf.Wait(), "each is cut off")
}

// A request that comes byte by byte has as long as any other. It is told so, and cut off.
func TestRequestThatDripsIsCutOff(t *testing.T) {
	t.Parallel()
	p, base, _ := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"))
	const clients = 500
	var dripping errgroup.Group
	for i := range clients {
		connection := connect(t, base)
		head := "POST /v1/sessions HTTP/1.1\r\nHost: lockd\r\nX-Owner-Id: w\r\n"
		if i%2 == 0 {
			head += "Content-Length: 1000\r\n\r\n"
		}
		dripping.Go(func() error {
			if _, err := io.WriteString(connection, head); err != nil {
				return err
			}
			tick := time.NewTicker(500 * time.Millisecond)
			defer tick.Stop()
			for range 60 {
				<-tick.C
				if _, err := io.WriteString(connection, "x"); err != nil {
					return nil //nolint:nilerr // cut off, as it must be
				}
			}
			return errors.New("lockd has waited for half a minute")
		})
	}
	whole := connect(t, base)
	_, err := io.WriteString(whole, "POST /v1/sessions HTTP/1.1\r\nHost: lockd\r\nContent-Length: 1000\r\n\r\n{")
	require.NoError(t, err)
	said := ended(t, whole, 20*time.Second)
	require.Contains(t, said, "408 Request Timeout")
	require.Contains(t, said, lockapi.CodeRequestTimeout)
	rss := residentBytes(t, p.PID())
	t.Logf("%d requests that drip: %d MiB resident", clients, rss>>20)
	require.Less(t, rss, int64(overloadRSS))
	require.NoError(t, dripping.Wait())
}

// 2 000 connections more than lockd may serve: those within the limit go on, the rest are told, and all the places come back.
func TestConnectionsBeyondTheLimitAreTurnedAway(t *testing.T) {
	t.Parallel()
	const most, beyond = 500, 2000
	p, base, admin := serve(t, pgtest.Login(t, pgtest.Database(t, migrations.LockDB()), "lockapp"), "--max-connections", "500")
	before := residentBytes(t, p.PID())
	ask := func(connection net.Conn) (int, string) {
		require.NoError(t, connection.SetDeadline(time.Now().Add(20*time.Second)))
		if _, err := io.WriteString(connection, "GET /v1/nowhere HTTP/1.1\r\nHost: lockd\r\n\r\n"); err != nil {
			return 0, ""
		}
		response, err := http.ReadResponse(bufio.NewReader(connection), nil)
		if err != nil {
			return 0, ""
		}
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, string(body)
	}
	held := make([]net.Conn, most)
	for i := range held {
		held[i] = connect(t, base)
		status, _ := ask(held[i])
		require.Equal(t, 404, status)
	}
	told, closed := 0, 0
	for range beyond {
		connection := connect(t, base)
		switch status, body := ask(connection); status {
		case 503:
			require.Contains(t, body, lockapi.CodeOverloaded)
			require.Contains(t, body, `"retryAfterMillis":`)
			told++
		case 0:
			closed++
		default:
			require.Fail(t, "served beyond the limit", "%d", status)
		}
		require.NoError(t, connection.Close())
	}
	rss := residentBytes(t, p.PID())
	t.Logf("%d connections held, %d told, %d closed without words: %d MiB resident, %d before", most, told, closed, rss>>20, before>>20)
	require.Greater(t, told, closed, "most are told")
	require.Less(t, rss, int64(overloadRSS))
	status, _ := ask(held[7])
	require.Equal(t, 404, status, "those within the limit aren't disturbed")
	status, _ = page(t, admin+"/readyz", "")
	require.Equal(t, 200, status, "the admin listener has places of its own")
	for _, connection := range held {
		require.NoError(t, connection.Close())
	}
	require.Eventually(t, func() bool {
		_, err := client(t, base).OpenSession(t.Context(), time.Minute)
		return err == nil
	}, 10*time.Second, 20*time.Millisecond)
}
