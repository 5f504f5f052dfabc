package pgstore

import "strings"

// The broken stores of the negative controls: each breaks one rule of C1, and the matrix must notice.

// WithoutOrderedGrants is C1's acquire as it stands, without the lock that orders draws.
func WithoutOrderedGrants(s *Store) { s.ordered = false }

// WithoutNewTokenOnTakeover is C1's warning 1: the takeover keeps the dead holder's token.
func WithoutNewTokenOnTakeover(s *Store) {
	s.acquire = strings.Replace(acquire, "       fencing_token = nextval('fencing_token_seq'),\n", "", 1)
}

// WithReleaseByKeyOnly forgets the token.
func WithReleaseByKeyOnly(s *Store) {
	s.release = strings.Replace(release, "   AND fencing_token = $2", "   AND $2::bigint > 0", 1)
}

// WithRenewAfterExpiry lets a lapsed grant live again.
func WithRenewAfterExpiry(s *Store) {
	s.renew = strings.Replace(renew, "   AND expires_at    > now()\n", "", 1)
}

// WithoutFloorOnRevoke draws no token for a revocation.
func WithoutFloorOnRevoke(s *Store) { s.floor = false }
