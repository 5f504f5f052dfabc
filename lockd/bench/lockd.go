package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"fenceline/internal/daemon"
	"fenceline/lockd/app"
	"fenceline/lockd/lockapi"
)

// lockSeconds is what both SQL sides lock for; nothing expires during a pair.
const lockSeconds = 30

// lockd is the contestant: HTTP with one connection for each client.
type lockd struct {
	http     *fasthttp.HostClient
	base     string
	sessions []string
	uses     processes
	called   string
}

const answerTimeout = 40 * time.Second

func newLockd(called, address string, clients int) (*lockd, error) {
	l := &lockd{called: called, base: "http://" + address, http: &fasthttp.HostClient{
		Addr: address, MaxConns: clients + 1, ReadTimeout: answerTimeout, WriteTimeout: answerTimeout,
		NoDefaultUserAgentHeader: true, MaxIdemponentCallAttempts: 1,
	}}
	for range clients {
		session, err := l.open()
		if err != nil {
			return nil, err
		}
		l.sessions = append(l.sessions, session)
	}
	return l, nil
}

func (l *lockd) name() string { return l.called }

func (l *lockd) processes() processes { return l.uses }

// owner is the same for all; sessions tell them apart.
const owner = "bench"

// send sends a request and returns the token in the answer's header and its body.
func (l *lockd) send(method, path, token, body string, want int) (answerToken string, answer []byte, err error) {
	request, response := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(response)
	request.Header.SetMethod(method)
	request.SetRequestURI(l.base + path)
	request.Header.Set(lockapi.HeaderOwner, owner)
	if token != "" {
		request.Header.Set(lockapi.HeaderToken, token)
	}
	if body != "" {
		request.SetBodyString(body)
	}
	if err := l.http.Do(request, response); err != nil {
		return "", nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if response.StatusCode() != want {
		return "", nil, fmt.Errorf("%s %s: status %d, want %d: %s", method, path, response.StatusCode(), want, response.Body())
	}
	return string(response.Header.Peek(lockapi.HeaderToken)), append([]byte(nil), response.Body()...), nil
}

func (l *lockd) open() (string, error) {
	_, body, err := l.send("POST", "/v1/sessions", "", fmt.Sprintf(`{"ownerId":%q,"ttlMillis":%d}`, owner, sessionSeconds*1000), 201)
	if err != nil {
		return "", err
	}
	var session lockapi.Session
	if err := json.Unmarshal(body, &session); err != nil {
		return "", fmt.Errorf("open session: %w", err)
	}
	return session.SessionID, nil
}

// beat keeps all sessions alive until ctx ends.
func (l *lockd) beat(ctx context.Context) {
	ticker := time.NewTicker(sessionSeconds * time.Second / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			var group sync.WaitGroup
			for _, session := range l.sessions {
				group.Go(func() { _, _, _ = l.send("POST", "/v1/sessions/"+session+"/heartbeat", "", "", 200) }) // a dead session fails the run
			}
			group.Wait()
		}
	}
}

func (l *lockd) acquire(i int, key string, waitMillis int) (token string, err error) {
	token, _, err = l.send("POST", "/v1/locks/"+key+"/acquire", "",
		fmt.Sprintf(`{"sessionId":%q,"ttlMillis":%d,"waitMillis":%d}`, l.sessions[i], lockSeconds*1000, waitMillis), 200)
	return token, err
}

func (l *lockd) release(key, token string) error {
	_, _, err := l.send("DELETE", "/v1/locks/"+key, token, "", 200)
	return err
}

func (l *lockd) worker(i int) pair {
	key := "bench:" + strconv.Itoa(i) + ":" + strconv.Itoa(l.uses.service) // two lockd share a database
	return func(context.Context) error {
		token, err := l.acquire(i, key, 0)
		if err != nil {
			return err
		}
		return l.release(key, token)
	}
}

// lockdCmd is lockd as `lockd serve` runs it, under the profiler.
type lockdCmd struct {
	Listen      string `required:""`
	AdminListen string `required:""`
	Profile     string `required:""`
	DatabaseURL string `env:"LOCKD_DATABASE_URL" required:""`
}

func (c *lockdCmd) Run() error {
	file, err := os.Create(c.Profile)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer func() { _ = file.Close() }()
	if err := pprof.StartCPUProfile(file); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	logger, err := daemon.NewLogger("lockd", "info", os.Stderr)
	if err != nil {
		return err
	}
	return daemon.Run(context.Background(), app.New(app.Config{
		Listen: c.Listen, AdminListen: c.AdminListen, DatabaseURL: c.DatabaseURL, MaxConns: 16,
		StoreTimeout: 3 * time.Second, StartupTimeout: 5 * time.Second,
	}, logger), 10*time.Second, logger)
}
