package executor

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"

	"fenceline/lockd/lockapi"
)

// fakeLocks is a lock service at the other end of the wire that does as it is told and counts.
type fakeLocks struct {
	mu                        sync.Mutex
	lost                      bool // every renewal is told so
	acquires, released, ended int
}

const testToken = 7

// RoundTrip implements http.RoundTripper.
func (f *fakeLocks) RoundTrip(r *http.Request) (*http.Response, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts := strings.Split(r.URL.Path, "/") // /v1/locks/{key}/…
	grant := func() (*http.Response, error) {
		return answer(200, lockapi.LockGrant{Key: parts[3], FencingToken: testToken, TTLMillis: testLockTTL.Milliseconds()})
	}
	switch last := parts[len(parts)-1]; {
	case last == "sessions":
		return answer(201, lockapi.Session{SessionID: "s", TTLMillis: testSessionTTL.Milliseconds()})
	case last == "heartbeat":
		return answer(200, lockapi.Heartbeat{})
	case last == "acquire":
		f.acquires++
		return grant()
	case last == "renew" && f.lost:
		return answer(409, lockapi.Error{Code: lockapi.CodeLockLost})
	case last == "renew":
		return grant()
	case parts[2] == "locks":
		f.released++
		return answer(200, lockapi.ReleaseResult{Released: true})
	default:
		f.ended++
		return answer(204, nil)
	}
}

func answer(status int, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	header := http.Header{}
	header.Set(lockapi.HeaderToken, "7")
	return &http.Response{StatusCode: status, Header: header, Body: io.NopCloser(strings.NewReader(string(data)))}, err
}
