package lockclient_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"fenceline/internal/pgserver"
	"fenceline/lockd/app"
	"fenceline/lockd/lockclient"
	"fenceline/migrations"
)

// lockd is a real one, started for the first that asks. Examples have no *testing.T, so it isn't pgtest's.
var lockd struct { //nolint:gochecknoglobals // a test binary has one
	once   sync.Once
	url    string
	err    error
	server *pgserver.Server
	app    *app.App
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopLockd(); err != nil {
		fmt.Fprintln(os.Stderr, "lockclient:", err)
		code = max(code, 1)
	}
	if err := goleak.Find(
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), // fasthttp's own clocks end a while after their servers
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2")); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "lockclient:", err)
		code = 1
	}
	os.Exit(code)
}

// realLockd returns the address of a real lockd.
func realLockd() (string, error) {
	lockd.once.Do(func() { lockd.err = startLockd() })
	return lockd.url, lockd.err
}

// options reach the real lockd.
func options() lockclient.Options {
	url, err := realLockd()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lockclient: no lockd:", err)
	}
	return lockclient.Options{URL: url}
}

func startLockd() error {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	server, err := pgserver.Start(ctx, pgserver.Options{Name: "examples", Progress: os.Stderr})
	if err != nil {
		return err
	}
	lockd.server = server
	connection, err := pgx.Connect(ctx, server.URL("postgres"))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close(ctx) }()
	if _, err := migrations.Apply(ctx, connection, migrations.LockDB()); err != nil {
		return err
	}
	lockd.app = app.New(app.Config{
		Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0", DatabaseURL: server.URL("postgres"), StoreTimeout: 3 * time.Second, StartupTimeout: 10 * time.Second,
	}, hclog.NewNullLogger())
	if err := lockd.app.Start(ctx); err != nil {
		return err
	}
	lockd.url = "http://" + lockd.app.Address().String()
	return nil
}

func stopLockd() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if lockd.app != nil {
		err = lockd.app.Stop(ctx)
	}
	if lockd.server != nil {
		if stopErr := lockd.server.Stop(ctx); err == nil {
			err = stopErr
		}
	}
	return err
}
