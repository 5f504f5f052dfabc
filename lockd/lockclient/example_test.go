package lockclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"fenceline/lockd/lockclient"
)

// sidecar stands for a sidecar before the guarded resource: it answers the barrier, and reads and writes.
func sidecar() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Fencing-Token") == "":
			w.WriteHeader(http.StatusBadRequest)
		case r.URL.Path == lockclient.BarrierPath:
			w.WriteHeader(http.StatusNoContent)
		}
	}))
}

// A session is opened once for a process. Do takes the lock, runs the function, and releases.
func ExampleSession_Do() {
	ctx := context.Background()
	o := options() // lockclient.FromEnv() in a program: LOCKD_URL, LOCKD_TOKEN_FILE
	o.Lock = lockclient.AcquireOptions{TTL: 30 * time.Second, Wait: time.Minute}
	session, err := lockclient.Open(ctx, "worker-1", o)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close(ctx) }()

	err = session.Do(ctx, "payout:42", func(ctx context.Context, held *lockclient.Held) error {
		// ctx ends when the lock is lost. What leaves this process carries the token, so that the resource can refuse it if this process
		// was frozen before and doesn't know yet.
		fmt.Println("working under", held.Key(), held.Token() > 0)
		return ctx.Err()
	})
	fmt.Println(err)
	// Output:
	// working under payout:42 true
	// <nil>
}

// The rule for work on a guarded resource: acquire, barrier at every guard that will be written through, read, decide, write.
func ExampleHeld_Barrier() {
	ctx := context.Background()
	account := sidecar()
	defer account.Close()
	session, err := lockclient.Open(ctx, "worker-1", options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close(ctx) }()
	held, err := session.Acquire(ctx, "account:7", lockclient.AcquireOptions{Wait: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = held.Release(ctx) }()

	// Nothing of an older holder's is on its way any more when this returns.
	if err := held.Barrier(ctx, lockclient.BarrierURL(account.URL, "account", "7")); err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: held.Transport(&http.Transport{DisableKeepAlives: true})} // X-Fencing-Token, X-Owner-Id
	for _, step := range []string{http.MethodGet, http.MethodPost} {
		// Right before a write: is the lock still ours, as far as lockd and the clocks know?
		if err := held.Check(ctx); err != nil {
			fmt.Println(err)
			return
		}
		request, err := http.NewRequestWithContext(ctx, step, account.URL+"/accounts/7", nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		response, err := client.Do(request)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = response.Body.Close()
		fmt.Println(step, response.StatusCode)
	}
	// Output:
	// GET 200
	// POST 200
}

// A lock that another session holds is a normal outcome. Each grant's token is above those before it.
func ExampleSession_Acquire() {
	ctx := context.Background()
	first, err := lockclient.Open(ctx, "worker-1", options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = first.Close(ctx) }()
	second, err := lockclient.Open(ctx, "worker-2", options())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = second.Close(ctx) }()

	one, err := first.Acquire(ctx, "report", lockclient.AcquireOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = second.Acquire(ctx, "report", lockclient.AcquireOptions{})
	fmt.Println("contended:", errors.Is(err, lockclient.ErrContended))

	_ = one.Release(ctx)
	two, err := second.Acquire(ctx, "report", lockclient.AcquireOptions{Wait: 10 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("above:", two.Token() > one.Token())
	_ = two.Release(ctx)
	// Output:
	// contended: true
	// above: true
}

// Who wants to stop in an orderly way when the lock is lost watches Lost or Context.
func ExampleHeld_Context() {
	ctx := context.Background()
	session, err := lockclient.Open(ctx, "worker-1", options())
	if err != nil {
		fmt.Println(err)
		return
	}
	held, err := session.Acquire(ctx, "leader", lockclient.AcquireOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = session.Close(ctx) // stands for whatever ends it
	<-held.Lost()
	fmt.Println(errors.Is(context.Cause(held.Context()), lockclient.ErrLockLost))
	// Output:
	// true
}
