package app_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
	"fenceline/lockd/lockclient"
)

// hold opens a session and takes the key with it.
func hold(t *testing.T, c *lockclient.Client, key string) (session string, token lock.Token) {
	t.Helper()
	opened, err := c.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	grant, err := c.Acquire(t.Context(), key, opened.SessionID, time.Minute)
	require.NoError(t, err)
	return opened.SessionID, lock.Token(grant.FencingToken)
}

// waiter is a raw connection on which an acquire waits.
func waiter(t *testing.T, base, session string, waitMillis int) net.Conn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	body := fmt.Sprintf(`{"sessionId":%q,"waitMillis":%d}`, session, waitMillis)
	_, err = fmt.Fprintf(conn, "POST /v1/locks/k/acquire HTTP/1.1\r\nHost: lockd\r\nX-Owner-Id: waiter\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	require.NoError(t, err)
	return conn
}

func waitersBecome(t *testing.T, c *lockclient.Client, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := c.Inspect(t.Context(), "k")
		return err == nil && info.WaiterCount != nil && *info.WaiterCount == n
	}, 10*time.Second, 5*time.Millisecond)
}

func TestWaiterIsGrantedOverHTTPAndToldHowLongItWaited(t *testing.T) {
	t.Parallel()
	base, _ := onDatabase(t)
	holder, other := client(t, base, "holder"), client(t, base, "waiter")
	_, token := hold(t, holder, "k")
	session, err := other.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	sent := time.Now()
	conn := waiter(t, base, session.SessionID, 30_000)
	waitersBecome(t, holder, 1)
	released := time.Now()
	_, err = holder.Release(t.Context(), "k", token)
	require.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	answered := time.Since(sent)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, 200, response.StatusCode)
	var grant lockapi.LockGrant
	require.NoError(t, json.NewDecoder(response.Body).Decode(&grant))
	require.Greater(t, grant.FencingToken, int64(token))
	require.LessOrEqual(t, grant.GrantedAfterMillis, answered.Milliseconds())
	require.GreaterOrEqual(t, grant.GrantedAfterMillis+1, released.Sub(sent).Milliseconds()-5, "the five are the way from the client to the server")

	// The connection still works: nothing was read from it while the request waited.
	_, err = fmt.Fprint(conn, "GET /v1/locks/k HTTP/1.1\r\nHost: lockd\r\n\r\n")
	require.NoError(t, err)
	second, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = second.Body.Close() }()
	require.Equal(t, 200, second.StatusCode)
}

func TestWaiterThatHangsUpLeavesTheQueue(t *testing.T) {
	t.Parallel()
	base, _ := onDatabase(t)
	holder, other := client(t, base, "holder"), client(t, base, "waiter")
	_, token := hold(t, holder, "k")
	session, err := other.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	for _, pipelined := range []string{"", "GET /v1/locks/k HTTP/1.1\r\nHost: lockd\r\n\r\n"} {
		conn := waiter(t, base, session.SessionID, 30_000)
		waitersBecome(t, holder, 1)
		_, err := conn.Write([]byte(pipelined)) // bytes that wait to be read don't hide the close
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		waitersBecome(t, holder, 0)
	}
	_, err = holder.Release(t.Context(), "k", token)
	require.NoError(t, err)
	info, err := holder.Inspect(t.Context(), "k")
	require.NoError(t, err)
	require.False(t, info.Held, "nobody is granted a lock for a client that has gone")
}

func TestWaitingEndsContendedWithTheHoldersName(t *testing.T) {
	t.Parallel()
	base, _ := onDatabase(t)
	holder, other := client(t, base, "holder"), client(t, base, "waiter")
	hold(t, holder, "k")
	session, err := other.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	start := time.Now()
	status, answer := send(t, "POST", base+"/v1/locks/k/acquire", fmt.Sprintf(`{"sessionId":%q,"waitMillis":300}`, session.SessionID), "X-Owner-Id", "waiter")
	require.Equal(t, 409, status)
	require.Equal(t, "LOCK_CONTENDED", answer.Code)
	require.Equal(t, "holder", answer.Details["holderOwnerId"])
	require.GreaterOrEqual(t, time.Since(start), 300*time.Millisecond)
}

func TestStoppingEndsWaitingAtOnce(t *testing.T) {
	t.Parallel()
	a := started(t, databaseConfig(t))
	base := "http://" + a.Address().String()
	holder, other := client(t, base, "holder"), client(t, base, "waiter")
	hold(t, holder, "k")
	session, err := other.OpenSession(t.Context(), time.Minute)
	require.NoError(t, err)
	conn := waiter(t, base, session.SessionID, 30_000)
	waitersBecome(t, holder, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, a.Stop(ctx))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	require.Equal(t, 503, response.StatusCode)
}
