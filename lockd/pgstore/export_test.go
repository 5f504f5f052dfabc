package pgstore

import "time"

// WithoutFloorOnRevoke draws no token for a revocation; it names the last one that was drawn.
func WithoutFloorOnRevoke(s *Store) { s.floor = "SELECT last_value FROM fencing_token_seq" }

// Flying is the number of groups of acquires and releases at the store.
func (s *Store) Flying() int { return s.changes.Flying() }

// Pending is the number of acquires and releases that wait for the next group.
func (s *Store) Pending() int { return s.changes.Pending() }

// SayHelloEvery changes how often replicas that listen say so.
func SayHelloEvery(s *Store, pause time.Duration) { s.notices.pause = pause }

// Alone says whether the store spares the database its notices.
func (s *Store) Alone() bool {
	s.notices.mu.Lock()
	defer s.notices.mu.Unlock()
	return s.notices.nobodyElse(time.Now())
}
