package filemark

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"fenceline/sidecar/mark"
)

// staged is what one transaction does to the register. It becomes true in memory when the commit has succeeded, and is forgotten when it has failed.
type staged struct {
	file  *File
	tx    *bbolt.Tx
	now   time.Time
	wrote bool
	flush bool // what was settled in memory is to be written even if nothing else is

	added       []*flight
	removed     map[mark.Row]struct{}
	unsettled   map[mark.Row]struct{}
	definitions map[string]string
	life        *string // the life that begins, or none when it ends
	given       mark.Row
}

func (f *File) stage(tx *bbolt.Tx, now time.Time) *staged {
	return &staged{file: f, tx: tx, now: now, removed: map[mark.Row]struct{}{}, unsettled: map[mark.Row]struct{}{}, definitions: map[string]string{}}
}

// register adds a row for an entry that was admitted, and sees the older ones. Everything goes through one transaction after the other, and this is the one that raised
// the mark: lower tokens are fenced out from here on, so no older row can come later. Those of the same transaction came before, or are fenced out too.
func (s *staged) register(op *operation) error {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	at := place{op.admission.Guard, op.admission.Key}
	op.older = slices.DeleteFunc(flights.older(at, op.admission.Token), func(row mark.Row) bool { _, gone := s.removed[row]; return gone })
	for _, one := range s.added {
		if one.place() == at && one.Token < op.admission.Token {
			op.older = append(op.older, one.row)
		}
	}
	said, err := readCensus(s.tx)
	if err != nil {
		return err
	}
	s.given = max(s.given, said.last, flights.last) + 1
	one := &flight{row: s.given, flightRecord: flightRecord{
		Guard: at.guard, Key: at.key, Token: op.admission.Token, Life: flights.life, Sidecar: op.sidecar, Route: op.entry.Route, Owner: op.entry.Owner, AdmittedAt: s.now.UTC(),
	}}
	op.row = one.row
	s.added = append(s.added, one)
	s.wrote = true
	flights.last = one.row // also where this transaction fails: nobody is told of this row then, and nobody gets it later
	return s.put(one.row, one.flightRecord)
}

func (s *staged) put(row mark.Row, r flightRecord) error {
	value, err := encodeFlight(row, r)
	if err != nil {
		return err
	}
	return s.tx.Bucket(bucketInflight).Put(rowKey(row), value)
}

// remove takes a row out of the file.
func (s *staged) remove(row mark.Row) error {
	s.removed[row] = struct{}{}
	s.wrote = true
	return s.tx.Bucket(bucketInflight).Delete(rowKey(row))
}

// unsettle records the moment, where none is recorded. The caller holds the lock.
func (s *staged) unsettle(one *flight) error {
	_, already := s.unsettled[one.row]
	_, gone := s.removed[one.row]
	if already || gone || !one.UnsettledAt.IsZero() {
		return nil
	}
	record := one.flightRecord
	record.UnsettledAt = s.now.UTC()
	s.unsettled[one.row] = struct{}{}
	s.wrote = true
	return s.put(one.row, record)
}

// define makes this the guard's definition, if nothing is in flight under another one; ok says whether it is.
func (s *staged) define(guard, definition string) (ok bool, err error) {
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	current, changed := s.definitions[guard]
	if !changed {
		current = flights.definitions[guard]
	}
	if current == definition {
		return true, nil
	}
	left := slices.ContainsFunc(flights.standing(guard), func(one *flight) bool { _, gone := s.removed[one.row]; return !gone })
	if left || slices.ContainsFunc(s.added, func(one *flight) bool { return one.Guard == guard }) {
		return false, nil
	}
	infos := s.tx.Bucket(bucketGuards)
	info, err := readInfo(infos, guard)
	if err != nil {
		return false, err
	}
	info.Definition = definition
	s.definitions[guard] = definition
	s.wrote = true
	return true, writeInfo(infos, guard, info)
}

// finish writes what was settled in memory meanwhile, since a commit is made anyway, and how many requests are in flight now.
func (s *staged) finish() error {
	for _, row := range s.file.flights.pending() {
		if err := s.remove(row); err != nil {
			return err
		}
	}
	if len(s.added) == 0 && len(s.removed) == 0 {
		return nil
	}
	said, err := readCensus(s.tx)
	if err != nil {
		return err
	}
	removed := 0
	s.file.flights.mu.Lock()
	for row := range s.removed {
		if s.file.flights.rows[row] != nil {
			removed++
		}
	}
	s.file.flights.mu.Unlock()
	if int64(said.count)+int64(len(s.added)) < int64(removed) { //nolint:gosec // small
		return fmt.Errorf("%w: it says that %d requests are in flight, %d end", ErrDamaged, said.count, removed)
	}
	said.count += uint64(len(s.added)) - uint64(removed)
	said.last = max(said.last, s.given)
	return s.tx.Bucket(bucketFormat).Put(keyRegister, said.encode())
}

// pending are the rows that were settled in memory.
func (f *flights) pending() []mark.Row {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.settled))
}

// apply makes true in memory what is durable now. A registration whose caller has gone away unanswered was never sent: its row is settled at once.
func (s *staged) apply(group []*operation) {
	now := time.Now()
	flights := &s.file.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	for _, one := range s.added {
		one.known = now
		flights.add(one)
	}
	for row := range s.unsettled {
		if one := flights.rows[row]; one != nil {
			changed := *one // others may be reading it
			changed.UnsettledAt, changed.unsettled = s.now.UTC(), now
			flights.replace(&changed)
		}
	}
	for row := range s.removed {
		flights.remove(row)
	}
	maps.Copy(flights.definitions, s.definitions)
	if s.life != nil {
		flights.life = *s.life
		if *s.life != "" {
			flights.begun[*s.life] = struct{}{}
		}
	}
	for _, op := range group {
		if op.row != 0 && !op.answer() {
			flights.settled[op.row] = struct{}{}
		}
	}
}

func (f *flights) replace(one *flight) {
	f.rows[one.row] = one
	at := f.at[one.place()]
	if i := slices.IndexFunc(at, func(other *flight) bool { return other.row == one.row }); i >= 0 {
		at[i] = one
	}
}

// reload reads the register anew: when the file was opened, and after a commit that failed, since then nobody knows which of the two states the file is
// in. A row that memory didn't know is one whose registration was answered with a fault: nothing was sent for it.
func (f *File) reload(first bool) error {
	var records map[mark.Row]flightRecord
	var said census
	definitions := map[string]string{}
	err := guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) (err error) {
			if records, err = readFlights(tx); err != nil {
				return err
			}
			said, _ = readCensus(tx) // just read
			return tx.Bucket(bucketGuards).ForEach(func(name, _ []byte) error {
				info, err := readInfo(tx.Bucket(bucketGuards), string(name))
				definitions[string(name)] = info.Definition
				return err
			})
		})
	})
	if err != nil {
		return err
	}
	now := time.Now()
	flights := &f.flights
	flights.mu.Lock()
	defer flights.mu.Unlock()
	before := flights.rows
	flights.rows, flights.at, flights.definitions = map[mark.Row]*flight{}, map[place][]*flight{}, definitions
	flights.last = max(flights.last, said.last)
	for _, row := range slices.Sorted(maps.Keys(records)) {
		one := &flight{row: row, flightRecord: records[row], known: now, unsettled: now}
		if old := before[row]; old != nil {
			one.known = old.known
			if !old.unsettled.IsZero() {
				one.unsettled = old.unsettled
			}
		} else if !first {
			flights.settled[row] = struct{}{}
		}
		flights.add(one)
	}
	for row := range flights.settled {
		if flights.rows[row] == nil {
			delete(flights.settled, row)
		}
	}
	return nil
}
