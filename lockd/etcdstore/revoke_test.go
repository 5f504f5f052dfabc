package etcdstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"fenceline/internal/etcdtest"
	"fenceline/lockd/etcdstore"
	"fenceline/lockd/lock"
)

// stepped is an etcd connection that stops before and after each transaction of a store's call, and lets something else happen at one of these points.
type stepped struct {
	clientv3.KV
	point int // where it is to happen
	meddle
	at      int  // points that were passed
	decided bool // the call has sent a transaction with conditions since, which is where each call decides
}

type meddle func()

func (s *stepped) pass(writes bool) {
	if s.at == s.point {
		s.meddle()
	}
	if s.at >= s.point && writes {
		s.decided = true
	}
	s.at++
}

func (s *stepped) Txn(ctx context.Context) clientv3.Txn { return &steppedTxn{Txn: s.KV.Txn(ctx), s: s} }

type steppedTxn struct {
	clientv3.Txn
	s      *stepped
	writes bool
}

func (t *steppedTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.writes = true
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *steppedTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(ops...)
	return t
}

func (t *steppedTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(ops...)
	return t
}

func (t *steppedTxn) Commit() (*clientv3.TxnResponse, error) {
	t.s.pass(t.writes)
	response, err := t.Txn.Commit()
	t.s.pass(false)
	return response, err
}

// scene is a grant with two stores that see it: calls are made through the one, and what comes between them through the other.
type scene struct {
	t       *testing.T
	calls   *etcdstore.Store
	other   *etcdstore.Store
	session lock.Session
	grant   lock.Grant
	came    error      // of what came between
	next    lock.Grant // another grant of the same key, if what came between made one
}

func (s *scene) revoke(store *etcdstore.Store) error {
	revocation, err := store.Revoke(s.t.Context(), lock.RevokeRequest{Key: s.grant.Key, Operator: "op", Reason: "it is stuck"})
	if err == nil && revocation.RevokedToken != s.grant.Token && revocation.RevokedToken != s.next.Token {
		return fmt.Errorf("token %d was revoked, which there wasn't", revocation.RevokedToken)
	}
	if err == nil && revocation.RevokedToken == s.next.Token {
		return errNextRevoked
	}
	return err
}

var errNextRevoked = errors.New("the grant that came after was revoked")

func (s *scene) renew(store *etcdstore.Store, token lock.Token, ttl time.Duration) error {
	_, err := store.Extend(s.t.Context(), s.grant.Key, token, ttl)
	return err
}

func (s *scene) beat(store *etcdstore.Store) error {
	_, _, _, err := store.Heartbeat(s.t.Context(), s.session.ID)
	return err
}

func (s *scene) take(session lock.Session) error {
	result, err := s.other.Insert(s.t.Context(), s.grant.Key, session.OwnerID, session.ID, 30*time.Second)
	if err == nil && !result.Granted {
		return errors.New("it is held")
	}
	s.next = result.Grant
	return err
}

func (s *scene) release() error {
	released, err := s.other.Delete(s.t.Context(), s.grant.Key, s.grant.Token)
	if released.Stale {
		return lock.ErrLockLost
	}
	return err
}

const sameTTL, otherTTL = 30 * time.Second, 40 * time.Second

// interruption is what comes between the steps of a call.
type interruption struct {
	ends bool // the grant
	do   func(s *scene) error
}

// comesBetween are the things that come between the steps of a revocation.
func comesBetween() map[string]interruption {
	return map[string]interruption{
		"renewal":                {false, func(s *scene) error { return s.renew(s.other, s.grant.Token, sameTTL) }},
		"renewal of another TTL": {false, func(s *scene) error { return s.renew(s.other, s.grant.Token, otherTTL) }},
		"heartbeat":              {false, func(s *scene) error { return s.beat(s.other) }},
		"end of the lease":       {true, func(s *scene) error { return s.other.ExpireGrant(s.t.Context(), s.grant.Key) }},
		"end of the session":     {true, func(s *scene) error { return s.other.ExpireSession(s.t.Context(), s.session.ID) }},
		"close of the session":   {true, func(s *scene) error { _, err := s.other.CloseSession(s.t.Context(), s.session.ID); return err }},
		"release":                {true, func(s *scene) error { return s.release() }},
		"acquire again":          {true, func(s *scene) error { return s.take(s.session) }},
		"release and takeover": {true, func(s *scene) error {
			if err := s.release(); err != nil {
				return err
			}
			bob, err := s.other.OpenSession(s.t.Context(), "bob", 30*time.Second)
			if err != nil {
				return err
			}
			return s.take(bob)
		}},
	}
}

// play makes a call with something in between at each of its points, until the call has no such point any more.
func play(t *testing.T, member *etcdtest.Member, breaks func(*etcdstore.Store), call, comes func(*scene) error, judge func(s *scene, answer error, decided bool) error) error {
	t.Helper()
	for point := 0; ; point++ {
		prefix := uuid.NewString()
		open := func(breaks ...func(*etcdstore.Store)) *etcdstore.Store {
			return openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: prefix, Timeout: 30 * time.Second}, breaks...)
		}
		s := &scene{t: t, calls: open(breaks), other: open()}
		s.session, s.grant = held(t, s.other, "key")
		require.NoError(t, s.calls.Check(t.Context())) // what is done once is out of the way
		steps := &stepped{KV: s.calls.Client().KV, point: point, meddle: func() { s.came = comes(s) }}
		s.calls.Client().KV = steps
		answer := call(s)
		s.calls.Client().KV = steps.KV
		if steps.at <= point {
			require.Greater(t, point, 3, "the call has steps")
			return nil
		}
		if err := judge(s, answer, steps.decided); err != nil {
			return fmt.Errorf("at point %d of %d: %w", point, steps.at, err)
		}
	}
}

// judgeRevocation says what is wrong with a revocation's answer.
func judgeRevocation(ends bool) func(s *scene, answer error, decided bool) error {
	return func(s *scene, answer error, decided bool) error {
		alive := s.renew(s.other, s.grant.Token, sameTTL) == nil
		nextAlive := s.next.Token != 0 && s.renew(s.other, s.next.Token, sameTTL) == nil
		switch {
		case answer != nil && !errors.Is(answer, lock.ErrNotHeld) && !errors.Is(answer, errNextRevoked):
			return answer
		case s.came != nil && (answer != nil || decided):
			return fmt.Errorf("what came between failed, and the revocation hadn't decided: %w", s.came)
		case alive:
			return fmt.Errorf("the revocation said %v, and the holder goes on", answer) //nolint:errorlint // told, not wrapped
		case !ends && answer != nil:
			return fmt.Errorf("the holder was there all the time, and the revocation said %w", answer)
		case ends && answer == nil && decided:
			return errors.New("a grant was revoked that was over")
		case s.next.Token != 0 && s.next.SessionID == s.session.ID && errors.Is(answer, lock.ErrNotHeld):
			return errors.New("not held was said of a key that its session held all the time")
		case s.next.Token != 0 && nextAlive == errors.Is(answer, errNextRevoked):
			return fmt.Errorf("the next grant is alive: %t, and the revocation said %v", nextAlive, answer) //nolint:errorlint // told, not wrapped
		}
		return nil
	}
}

// Whatever comes between the steps of a revocation, its answer is true, and what it ends is what it judged.
func TestRevocationIsOneStepToEverybodyElse(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	revoke := func(s *scene) error { return s.revoke(s.calls) }
	for name, between := range comesBetween() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, play(t, member, none, revoke, between.do, judgeRevocation(between.ends)))
		})
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		takeover := comesBetween()["release and takeover"]
		require.ErrorContains(t, play(t, member, etcdstore.WithBlindRevocation, revoke, takeover.do, judgeRevocation(true)), "revoked that was over")
	})
}

func none(*etcdstore.Store) {}

// A renewal or a heartbeat into whose middle a revocation comes finds the lock lost: also when the revocation said "not held", because
// the lease or the session had just ended. Otherwise an operator would be told that nobody holds the lock, and the holder that it goes on.
func TestRenewalAndHeartbeatAreJudgedByARevocationInTheirMiddle(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	calls := map[string]func(*scene) error{
		"renewal":                func(s *scene) error { return s.renew(s.calls, s.grant.Token, sameTTL) },
		"renewal of another TTL": func(s *scene) error { return s.renew(s.calls, s.grant.Token, otherTTL) },
		"heartbeat":              func(s *scene) error { return s.beat(s.calls) },
	}
	revoked := func(s *scene) error { return s.revoke(s.other) }
	notHeld := func(s *scene, ended error) error {
		if err := s.revoke(s.other); ended != nil || !errors.Is(err, lock.ErrNotHeld) {
			return fmt.Errorf("ended %w, then revoked %w, want not held", ended, err)
		}
		return nil
	}
	endings := map[string]func(*scene) error{
		"revoked":                revoked,
		"lease over, not held":   func(s *scene) error { return notHeld(s, s.other.ExpireGrant(s.t.Context(), s.grant.Key)) },
		"session over, not held": func(s *scene) error { return notHeld(s, s.other.ExpireSession(s.t.Context(), s.session.ID)) },
	}
	judge := func(over ...error) func(*scene, error, bool) error {
		return func(s *scene, answer error, decided bool) error {
			if s.came != nil {
				return s.came
			}
			if s.renew(s.other, s.grant.Token, sameTTL) == nil {
				return errors.New("the holder goes on")
			}
			if answer == nil && decided {
				return errors.New("success was said of what was over")
			}
			for _, err := range over {
				if errors.Is(answer, err) {
					return nil
				}
			}
			return answer
		}
	}
	for name, call := range calls {
		for ending, comes := range endings {
			if name == "heartbeat" && ending != "session over, not held" {
				continue // the session goes on without the lock
			}
			t.Run(name+"/"+ending, func(t *testing.T) {
				t.Parallel()
				require.NoError(t, play(t, member, none, call, comes, judge(lock.ErrLockLost, lock.ErrSessionExpired)))
			})
		}
	}
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		require.ErrorContains(t, play(t, member, etcdstore.WithoutSecondLookOnRenew, calls["renewal"], revoked, judge(lock.ErrLockLost)), "success was said")
	})
}

// Leases that etcd itself is about to end, with a renewal and a revocation racing for each: never does the one say that the lock is held on and the other that
// it isn't held.
func TestRenewalAndRevocationAtTheEndOfALeaseAgree(t *testing.T) {
	t.Parallel()
	member := etcdtest.Start(t)
	require.NoError(t, raceAtTheEnd(t, member, none))
	require.ErrorContains(t, raceAtTheEnd(t, member, etcdstore.WithTakeoverOfLiveGrants), "goes on", "the control: a revocation that takes everything for dead")
}

func raceAtTheEnd(t *testing.T, member *etcdtest.Member, breaks func(*etcdstore.Store)) error {
	t.Helper()
	const races = 40
	prefix := uuid.NewString()
	holder := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: prefix, Timeout: 30 * time.Second})
	operator := openAt(t, etcdstore.Config{Endpoints: []string{member.Endpoint()}, Prefix: prefix, Timeout: 30 * time.Second}, breaks)
	session, err := holder.OpenSession(t.Context(), "alice", time.Minute)
	require.NoError(t, err)
	var all errgroup.Group
	for i := range races {
		all.Go(func() error {
			key := fmt.Sprint(i)
			result, err := holder.Insert(t.Context(), key, "alice", session.ID, time.Second)
			if err != nil {
				return err
			}
			ttl := result.Grant.TTL
			// Etcd looks twice a second for what has ended.
			timer := time.NewTimer(time.Until(result.Grant.ExpiresAt) + time.Duration(i-races/3)*25*time.Millisecond)
			defer timer.Stop()
			<-timer.C
			start := time.Now()
			renewed := make(chan error, 1)
			go func() {
				_, err := holder.Extend(t.Context(), key, result.Grant.Token, ttl)
				renewed <- err
			}()
			_, revoked := operator.Revoke(t.Context(), lock.RevokeRequest{Key: key, Operator: "op", Reason: "it is stuck"})
			took := time.Since(start)
			kept := <-renewed
			_, after := holder.Extend(t.Context(), key, result.Grant.Token, ttl)
			switch {
			case revoked != nil && !errors.Is(revoked, lock.ErrNotHeld), kept != nil && !errors.Is(kept, lock.ErrLockLost):
				return errors.Join(revoked, kept)
			case after == nil:
				return fmt.Errorf("the revocation said %v, and the holder goes on", revoked) //nolint:errorlint // told, not wrapped
			case errors.Is(revoked, lock.ErrNotHeld) && kept == nil && took < ttl:
				return errors.New("the lease was renewed for longer than the revocation took, and it said not held")
			}
			return nil
		})
	}
	return all.Wait()
}
