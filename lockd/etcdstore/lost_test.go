package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"fenceline/internal/etcdtest"
	"fenceline/internal/faultnet"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// losing is an etcd connection on which the answer to the first writing transaction gets lost: etcd carries it out, and nobody hears of it.
type losing struct {
	clientv3.KV
	lose func()            // before the transaction is sent
	told func(error) error // what the store is told instead of the error that comes of it
	lost bool
}

func (l *losing) Txn(ctx context.Context) clientv3.Txn { return &losingTxn{Txn: l.KV.Txn(ctx), l: l} }

type losingTxn struct {
	clientv3.Txn
	l      *losing
	writes bool
}

func (t *losingTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.writes = true // reading ones have no conditions, not even none
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *losingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *losingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *losingTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.writes || t.l.lost {
		return t.Txn.Commit()
	}
	t.l.lost = true
	t.l.lose()
	response, err := t.Txn.Commit()
	if err != nil && t.l.told != nil {
		err = t.l.told(err)
	}
	return response, err
}

// loss is the scene of a lost answer: a holder of "key", a store whose answer gets lost, and one that still reaches etcd.
type loss struct {
	t       *testing.T
	far     *etcdstore.Store // behind the fault
	near    *etcdstore.Store
	session lock.Session
	grant   lock.Grant
}

// lossy is a call whose answer gets lost.
type lossy struct {
	call func(ctx context.Context, l *loss) error
	// happened says whether etcd has carried it out.
	happened func(l *loss) bool
	// again makes the same call once more, as a client may that was told that the outcome is unknown, and says what is wrong with the answer.
	again func(l *loss) error
}

func (l *loss) held() (lock.Grant, bool) {
	grant, held, err := l.near.Read(l.t.Context(), "key")
	require.NoError(l.t, err)
	return grant, held
}

func lossyCalls() map[string]lossy {
	const other = 50 * time.Second
	return map[string]lossy{
		"acquire": {
			func(ctx context.Context, l *loss) error {
				_, err := l.far.Insert(ctx, "key", "alice", l.session.ID, time.Minute)
				return err
			},
			func(l *loss) bool { grant, _ := l.held(); return grant.Token > l.grant.Token },
			func(l *loss) error {
				unknown, _ := l.held()
				bob, err := l.near.OpenSession(l.t.Context(), "bob", time.Minute)
				require.NoError(l.t, err)
				taken, err := l.near.Insert(l.t.Context(), "key", "bob", bob.ID, time.Minute)
				if err != nil || taken.Granted {
					return fmt.Errorf("it was granted twice: %+v, %w", taken, err)
				}
				again, err := l.near.Insert(l.t.Context(), "key", "alice", l.session.ID, time.Minute)
				if err != nil || !again.Granted || again.Grant.Token <= unknown.Token {
					return fmt.Errorf("again: %+v, %w; want a token above %d", again, err, unknown.Token)
				}
				return nil
			},
		},
		"renew": {
			func(ctx context.Context, l *loss) error {
				_, err := l.far.Extend(ctx, "key", l.grant.Token, other)
				return err
			},
			func(l *loss) bool {
				grant, held := l.held()
				return held && grant.ExpiresAt.After(l.grant.ExpiresAt.Add(10*time.Second))
			},
			func(l *loss) error {
				_, err := l.near.Extend(l.t.Context(), "key", l.grant.Token, other)
				return err
			},
		},
		"release": {
			func(ctx context.Context, l *loss) error {
				_, err := l.far.Delete(ctx, "key", l.grant.Token)
				return err
			},
			func(l *loss) bool { _, held := l.held(); return !held },
			func(l *loss) error {
				released, err := l.near.Delete(l.t.Context(), "key", l.grant.Token)
				if err == nil && !released.Stale {
					return errors.New("released twice")
				}
				return err
			},
		},
		"revoke": {
			func(ctx context.Context, l *loss) error {
				_, err := l.far.Revoke(ctx, lock.RevokeRequest{Key: "key", Operator: "op", Reason: "it is stuck"})
				return err
			},
			func(l *loss) bool {
				records, _, err := l.near.Revocations(l.t.Context(), 0, 10)
				require.NoError(l.t, err)
				return len(records) == 1 && records[0].PreviousToken == l.grant.Token
			},
			func(l *loss) error {
				_, err := l.near.Revoke(l.t.Context(), lock.RevokeRequest{Key: "key", Operator: "op", Reason: "it is stuck", Expected: l.grant.Token})
				if errors.Is(err, lock.ErrNotHeld) {
					return nil
				}
				return fmt.Errorf("again: %w, want not held", err)
			},
		},
		"close session": {
			func(ctx context.Context, l *loss) error { _, err := l.far.CloseSession(ctx, l.session.ID); return err },
			func(l *loss) bool {
				_, _, _, err := l.near.Heartbeat(l.t.Context(), l.session.ID)
				return errors.Is(err, lock.ErrSessionUnknown)
			},
			func(l *loss) error {
				_, err := l.near.CloseSession(l.t.Context(), l.session.ID)
				if errors.Is(err, lock.ErrSessionUnknown) {
					return nil
				}
				return fmt.Errorf("again: %w, want unknown", err)
			},
		},
		"fast-forward": {
			func(ctx context.Context, l *loss) error {
				_, _, err := l.far.FastForward(ctx, lock.FastForwardRequest{Above: 7_000_000, Operator: "op", Reason: "the marks are higher"})
				return err
			},
			func(l *loss) bool {
				highest, err := l.near.HighestToken(l.t.Context())
				require.NoError(l.t, err)
				return highest >= 7_000_000
			},
			func(l *loss) error {
				_, _, err := l.near.FastForward(l.t.Context(), lock.FastForwardRequest{Above: 7_000_000, Operator: "op", Reason: "the marks are higher"})
				if errors.Is(err, lock.ErrInvalid) {
					return nil
				}
				return fmt.Errorf("again: %w, want refused: it is there already", err)
			},
		},
	}
}

// answerLost makes the call, loses its answer, and says what is wrong with what the store made of it. With cut the connection breaks once etcd has
// carried the call out; else nothing is heard any more.
func answerLost(t *testing.T, member *etcdtest.Member, c lossy, cut bool, told func(error) error) error {
	t.Helper()
	proxy := faultnet.New(t, strings.TrimPrefix(member.Endpoint(), "http://"))
	prefix := uuid.NewString()
	l := &loss{
		t:    t,
		far:  openAt(t, etcdstore.Config{Endpoints: []string{"http://" + proxy.Addr()}, Prefix: prefix, Timeout: 3 * time.Second}),
		near: openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: prefix, Timeout: 30 * time.Second}),
	}
	require.Eventually(t, func() bool { return l.far.Check(t.Context()) == nil }, time.Minute, time.Millisecond)
	l.session, l.grant = held(t, l.near, "key")
	over := make(chan struct{})
	watch := func() {
		defer close(over)
		for cut && !c.happened(l) && t.Context().Err() == nil {
			<-time.After(time.Millisecond)
		}
		if cut {
			proxy.Cut()
		}
	}
	lost := &losing{KV: l.far.Client().KV, told: told, lose: func() {
		proxy.Silence()
		go watch()
	}}
	l.far.Client().KV = lost
	answer := c.call(t.Context(), l)
	if !lost.lost {
		return answerLost(t, member, c, cut, told) // the machine is so busy that the call came to nothing before
	}
	<-over
	require.Eventually(t, func() bool { return c.happened(l) }, time.Minute, time.Millisecond, "etcd carries it out, heard or unheard")
	if !errors.Is(answer, lock.ErrUnknownOutcome) {
		return fmt.Errorf("it happened, and the store said %w", answer)
	}
	return c.again(l)
}

// A change whose answer was lost is told as one that may have happened, never as one that didn't, and never granted to a second one. Who asks again gets what
// fits.
func TestChangeWhoseAnswerIsLostIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	for name, c := range lossyCalls() {
		for fault, cut := range map[string]bool{"silence": false, "cut": true} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				t.Parallel()
				require.NoError(t, answerLost(t, member, c, cut, nil))
			})
		}
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		// An etcd that calls a lost answer a refusal: then the store believes that nothing has happened.
		refused := func(error) error { return rpctypes.ErrNoSpace }
		require.ErrorContains(t, answerLost(t, member, lossyCalls()["release"], true, refused), "it happened, and the store said")
	})
}
