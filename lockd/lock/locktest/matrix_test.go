package locktest_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/internal/etcdtest"
	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
	"fenceline/lockd/lock/locktest"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

// atOnce is how many scenarios run at once, unless the command line says otherwise. Most of them wait for a lease to run out and need no processor.
const atOnce = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", atOnce); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	pgtest.Main(m)
}

// backends is the other axis of the matrix. A backend joins by giving a constructor.
func backends(t *testing.T) map[string]func(t *testing.T) locktest.Store {
	t.Helper()
	member := etcdtest.Start(t) // one for all of them, each under a prefix of its own
	return map[string]func(t *testing.T) locktest.Store{
		"pg":   newPGStore,
		"etcd": func(t *testing.T) locktest.Store { t.Helper(); return newEtcdStore(t, member) },
	}
}

func newPGStore(t *testing.T) locktest.Store {
	t.Helper()
	owner := pgtest.Database(t, migrations.LockDB())
	pool, err := postgres.Open(t.Context(), postgres.Config{URL: pgtest.Login(t, owner, "lockapp"), MaxConns: 16})
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	admin := pgtest.Connect(t, owner)
	return locktest.Store{
		Store: pgstore.New(pool, 10*time.Second),
		ExpireSession: func(ctx context.Context, id uuid.UUID) error {
			_, err := admin.Exec(ctx, "UPDATE lock_session SET created_at = now() - interval '2 s', expires_at = now() - interval '1 s' WHERE session_id = $1", id)
			return err
		},
	}
}

func newEtcdStore(t *testing.T, member *etcdtest.Member) locktest.Store {
	t.Helper()
	prefix := uuid.NewString() + "/"
	store, err := etcdstore.Open(etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: prefix, Timeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	admin := etcdtest.Connect(t, member.Endpoint())
	return locktest.Store{
		Store: store,
		ExpireSession: func(ctx context.Context, id uuid.UUID) error {
			life, err := admin.Get(ctx, prefix+"session-life/"+id.String())
			if err != nil || len(life.Kvs) == 0 {
				return fmt.Errorf("find the session's lease: %d keys, %w", len(life.Kvs), err)
			}
			_, err = admin.Revoke(ctx, clientv3.LeaseID(life.Kvs[0].Lease)) // as etcd does when its time is over
			return err
		},
	}
}

func TestMatrix(t *testing.T) {
	t.Parallel()
	for backend, open := range backends(t) {
		for _, scenario := range locktest.Scenarios() {
			t.Run(backend+"/"+scenario.Name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // seconds on a machine of its own
				defer cancel()
				require.NoError(t, scenario.Run(ctx, open(t)))
			})
		}
	}
}

// untold is a store that says of a closed session's grants what it shouldn't.
type untold struct {
	lock.Store
	says func([]lock.Ended) []lock.Ended
}

func (u untold) CloseSession(ctx context.Context, id uuid.UUID) ([]lock.Ended, error) {
	ended, err := u.Store.CloseSession(ctx, id)
	return u.says(ended), err
}

func TestMatrixFindsEndsThatAreToldTwiceOrNotAtAll(t *testing.T) {
	t.Parallel()
	for name, says := range map[string]func([]lock.Ended) []lock.Ended{
		"told 0 times": func(ended []lock.Ended) []lock.Ended { return ended[1:] },
		"told 2 times": func(ended []lock.Ended) []lock.Ended { return append(ended, ended[0]) },
	} {
		store := newPGStore(t)
		store.Store = untold{store.Store, says}
		for _, scenario := range locktest.Scenarios() {
			if scenario.Name == "everyGrantOfAClosedSessionIsToldOnce" {
				require.ErrorContains(t, scenario.Run(t.Context(), store), name)
			}
		}
	}
}
