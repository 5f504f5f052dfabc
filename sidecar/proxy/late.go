package proxy

import (
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/sidecar/gate"
)

const (
	// maxLate bounds the connections on which a late response is waited for.
	maxLate = 256
	// lateTime is how long. It costs one connection and nothing else; a request that isn't settled by then is settled by the guard's rule or an operator.
	lateTime = 10 * time.Minute
)

// awaitLate goes on reading a connection whose response didn't come in time: when it comes after all, the request's outcome is known. It is false when as many are
// waited for as may; then the connection is to be closed.
func (u *upstream) awaitLate(conn *upstreamConn, t trip) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed || len(u.late) >= maxLate {
		return false
	}
	if u.late == nil {
		u.late = map[*upstreamConn]struct{}{}
	}
	u.late[conn] = struct{}{}
	go u.readLate(conn, t)
	return true
}

// readLate reads the late response and gives its end. The connection isn't used again.
func (u *upstream) readLate(conn *upstreamConn, t trip) {
	defer func() {
		u.mu.Lock()
		delete(u.late, conn)
		u.mu.Unlock()
		_ = conn.Close()
	}()
	response := fasthttp.AcquireResponse()
	defer fasthttp.ReleaseResponse(response)
	if conn.SetDeadline(time.Now().Add(lateTime)) != nil || u.receiveHead(conn.reader, response) != nil {
		return
	}
	end := gate.End{Sent: gate.WhollySent, Status: response.StatusCode(), Answered: t.head || noBody(response.StatusCode())}
	if !end.Answered {
		delimited, err := u.receiveBody(conn.reader, response)
		end.Answered = delimited && err == nil
	}
	t.late(end)
}
