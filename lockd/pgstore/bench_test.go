package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fenceline/internal/pgserver/pgtest"
	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/lockd/pgstore"
	"fenceline/migrations"
)

const benchClients = 64

// BenchmarkAcquireRelease compares pairs of acquire and release on distinct keys: through the store, and C1's two statements by themselves, each
// committed on its own, through a pool with a connection for each client.
func BenchmarkAcquireRelease(b *testing.B) {
	for name, open := range map[string]func(b *testing.B, url string) (acquire func(ctx context.Context, key string) (lock.Token, error), release func(ctx context.Context, key string, token lock.Token) error){
		"store": benchStore, "statements": benchStatements,
	} {
		b.Run(name, func(b *testing.B) {
			url := pgtest.Login(b, pgtest.Database(b, migrations.LockDB()), "lockapp")
			acquire, release := open(b, url)
			var clients atomic.Int64
			b.SetParallelism(max(benchClients/runtime.GOMAXPROCS(0), 1))
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				key := fmt.Sprintf("client:%d", clients.Add(1))
				for pb.Next() {
					token, err := acquire(b.Context(), key)
					if err == nil {
						err = release(b.Context(), key, token)
					}
					if err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pairs/s")
		})
	}
}

func benchStore(b *testing.B, url string) (func(context.Context, string) (lock.Token, error), func(context.Context, string, lock.Token) error) {
	b.Helper()
	pool, err := postgres.Open(b.Context(), postgres.Config{URL: url, MaxConns: 16, QueryMode: os.Getenv("LOCKD_QUERY_MODE")})
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	store := pgstore.New(pool, 10*time.Second)
	b.Cleanup(store.Close)
	session, err := store.OpenSession(b.Context(), "bench", time.Minute)
	require.NoError(b, err)
	return func(ctx context.Context, key string) (lock.Token, error) {
			result, err := store.Insert(ctx, key, "bench", session.ID, 30*time.Second)
			return result.Grant.Token, err
		}, func(ctx context.Context, key string, token lock.Token) error {
			_, err := store.Delete(ctx, key, token)
			return err
		}
}

func benchStatements(b *testing.B, url string) (func(context.Context, string) (lock.Token, error), func(context.Context, string, lock.Token) error) {
	b.Helper()
	pool, err := postgres.Open(b.Context(), postgres.Config{URL: url, MaxConns: benchClients, QueryMode: os.Getenv("LOCKD_QUERY_MODE")})
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	session, err := pgstore.New(pool, 10*time.Second).OpenSession(b.Context(), "bench", time.Minute)
	require.NoError(b, err)
	return func(ctx context.Context, key string) (token lock.Token, err error) {
			rows, err := pool.Query(ctx, c1Acquire, key, "bench", session.ID, 30.0)
			if err != nil {
				return 0, err
			}
			defer rows.Close()
			if rows.Next() {
				err = rows.Scan(&token, nil, nil, nil, nil)
			}
			rows.Close()
			return token, err
		}, func(ctx context.Context, key string, token lock.Token) error {
			_, err := pool.Exec(ctx, c1Release, key, token)
			return err
		}
}

// C1's two statements as they stand.
const (
	c1Acquire = `
INSERT INTO lock_entry (lock_key, owner_id, session_id, fencing_token, acquired_at, expires_at)
VALUES ($1, $2, $3, nextval('fencing_token_seq'),
        now(), now() + make_interval(secs => $4))
ON CONFLICT (lock_key) DO UPDATE
   SET owner_id      = EXCLUDED.owner_id,
       session_id    = EXCLUDED.session_id,
       fencing_token = nextval('fencing_token_seq'),
       acquired_at   = now(),
       expires_at    = now() + make_interval(secs => $4)
 WHERE lock_entry.expires_at <= now()
    OR (lock_entry.owner_id = EXCLUDED.owner_id AND lock_entry.session_id = EXCLUDED.session_id)
RETURNING fencing_token, owner_id, session_id, acquired_at, expires_at`
	c1Release = `
DELETE FROM lock_entry
 WHERE lock_key      = $1
   AND fencing_token = $2
RETURNING fencing_token`
)
