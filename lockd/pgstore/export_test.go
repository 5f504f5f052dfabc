package pgstore

import "strings"

// The broken stores of the negative controls: each breaks one rule, and the matrix must notice. A control whose replacement finds
// nothing to replace leaves the rule as it is, and fails itself that way.

// WithoutOrderedGrants is C1's acquire as it stands, without the lock that orders draws.
func WithoutOrderedGrants(s *Store) { s.sql.order = "SELECT $1::text" }

// WithoutNewTokenOnTakeover is C1's warning 1: the takeover keeps the dead holder's token.
func WithoutNewTokenOnTakeover(s *Store) {
	s.sql.acquire = strings.Replace(acquire, "       fencing_token = nextval('fencing_token_seq'),\n", "", 1)
}

// WithTakeoverOfLiveGrants forgets what C1's DO UPDATE is conditional on.
func WithTakeoverOfLiveGrants(s *Store) {
	s.sql.acquire = strings.Replace(acquire, "lock_entry.expires_at <= now()", "true", 1)
}

// WithReleaseByKeyOnly forgets the token.
func WithReleaseByKeyOnly(s *Store) {
	s.sql.release = strings.Replace(release, "   AND fencing_token = $2", "   AND $2::bigint > 0", 1)
}

// WithRenewAfterExpiry lets a lapsed grant live again.
func WithRenewAfterExpiry(s *Store) {
	s.sql.renew = strings.Replace(renew, "   AND expires_at    > now()\n", "", 1)
}

// WithoutFloorOnRevoke draws no token for a revocation; it names the last one that was drawn.
func WithoutFloorOnRevoke(s *Store) { s.sql.floor = "SELECT last_value FROM fencing_token_seq" }

// WithoutEndOfDeadHolders leaves dead sessions to the reaper.
func WithoutEndOfDeadHolders(s *Store) { s.sql.endDead += " AND false" }

// WithExpiredSessions lets an expired session acquire until it is reaped.
func WithExpiredSessions(s *Store) {
	s.sql.session = strings.Replace(lockSession, "expires_at > now()", "true", 1)
}

// WithoutDurability doesn't ask whether the server keeps what it confirms.
func WithoutDurability(s *Store) { s.sql.durable = "SELECT true" }
