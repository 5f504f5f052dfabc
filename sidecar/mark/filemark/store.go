package filemark

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.etcd.io/bbolt"

	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// Store is a file with the guards of one configuration. It implements mark.OperatedStore and mark.Register.
type Store struct {
	file    *File
	id      string
	guards  map[string]config.Guard
	timeout time.Duration
	maxJump int64
}

// Store returns the file's marks for the guards. It makes room for new guards, and refuses a guard whose keys were of another type: one key
// would have two marks. ID is the sidecar's, for people who look at its requests in flight. Timeout bounds one admission.
func (f *File) Store(id string, guards []config.Guard, timeout time.Duration, maxJump int64) (*Store, error) {
	s := &Store{file: f, id: id, guards: map[string]config.Guard{}, timeout: timeout, maxJump: maxJump}
	for _, g := range guards {
		s.guards[g.Name] = g
	}
	err := guarded(func() error { return f.db.Update(func(tx *bbolt.Tx) error { return introduce(tx, guards) }) })
	if err != nil && !errors.Is(err, errNothingToWrite) {
		return nil, fmt.Errorf("guards of the mark file: %w", err)
	}
	return s, nil
}

func introduce(tx *bbolt.Tx, guards []config.Guard) error {
	marks, infos := tx.Bucket(bucketMarks), tx.Bucket(bucketGuards)
	isNew := false
	for _, g := range guards {
		if marks.Bucket([]byte(g.Name)) != nil {
			info, err := readInfo(infos, g.Name)
			if err == nil && info.KeyType != string(g.Mark.KeyType) {
				err = fmt.Errorf("guard %s has keys of type %s in the file; give it another name, or write key_type: %s", g.Name, info.KeyType, info.KeyType)
			}
			if err != nil {
				return err
			}
			continue
		}
		isNew = true
		if _, err := marks.CreateBucket([]byte(g.Name)); err != nil {
			return err
		}
		if err := writeInfo(infos, g.Name, guardInfo{KeyType: string(g.Mark.KeyType)}); err != nil {
			return err
		}
	}
	if !isNew {
		return errNothingToWrite
	}
	return nil
}

// Admit implements mark.Store.
func (s *Store) Admit(ctx context.Context, a mark.Admission) (mark.Decision, error) {
	return s.do(ctx, a, s.guards[a.Guard].Mark.Missing == config.MissingReject, s.maxJump)
}

// Raise implements mark.OperatedStore.
func (s *Store) Raise(ctx context.Context, guard, key string, token lock.Token) (mark.Decision, error) {
	return s.do(ctx, mark.Admission{Guard: guard, Key: key, Token: token, Newer: true}, false, math.MaxInt64)
}

func (s *Store) do(ctx context.Context, a mark.Admission, reject bool, maxJump int64) (mark.Decision, error) {
	if _, ok := s.guards[a.Guard]; !ok {
		return mark.Decision{}, fmt.Errorf("no guard %s", a.Guard)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	return s.file.do(ctx, &operation{admission: a, reject: reject, maxJump: maxJump})
}

// Lookup implements mark.Store. A file has no tables; the configuration allows no lookups with it.
func (s *Store) Lookup(context.Context, string, []string) (string, bool, error) {
	return "", false, fmt.Errorf("%w: a mark file answers no queries", mark.ErrUnavailable)
}

// Read implements mark.Store.
func (s *Store) Read(_ context.Context, guard, key string) (token lock.Token, found bool, err error) {
	if _, ok := s.guards[guard]; !ok {
		return 0, false, fmt.Errorf("no guard %s", guard)
	}
	err = guarded(func() error {
		return s.file.db.View(func(tx *bbolt.Tx) (err error) {
			token, found, err = get(tx.Bucket(bucketMarks).Bucket([]byte(guard)), guard, key)
			return err
		})
	})
	if err != nil {
		return 0, false, fmt.Errorf("read mark: %w: %w", mark.ErrUnavailable, err)
	}
	return token, found, nil
}

func get(marks *bbolt.Bucket, guard, key string) (token lock.Token, found bool, err error) {
	value := marks.Get([]byte(key))
	if value == nil {
		return 0, false, nil
	}
	token, err = decode(guard, []byte(key), value)
	return token, err == nil, err
}

// Check says whether the file can be trusted with marks. After a commit that failed it tries one: a sidecar that isn't ready gets no requests that
// would.
func (s *Store) Check(ctx context.Context) error {
	if err := s.file.usable(); err != nil || !s.file.unproven.Load() {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	_, err := s.file.do(ctx, &operation{probe: true})
	return err
}
