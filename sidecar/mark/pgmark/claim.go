package pgmark

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// A guard with ownership: exclusive belongs to one life at a time, which holds its row in fence.claim. A claim has no time limit of its own: it is good for as long as its
// life isn't declared dead, and a life that was is never called alive again. So the heartbeat renews all claims, and the gate's check before each first byte, which counts from when the
// last heartbeat that the store took was *sent*, is the check of the claim's deadline.
//
// Every write that stands on a claim holds claimShared and looks for the claim in a later statement; whoever takes over holds claimAlone. So no write of a former owner comes after the takeover.
const (
	claimShared = `SELECT pg_advisory_xact_lock_shared(hashtextextended('fence.claim/' || $1::text, 0))`
	claimAlone  = `SELECT pg_advisory_xact_lock(hashtextextended('fence.claim/' || $1::text, 0))`

	readClaim = `
SELECT c.life, c.settled, c.unsettled_after, s.id, s.ended_at IS NULL,
       s.ended_at IS NOT NULL AND (c.settled OR s.ended_at + c.unsettled_after < clock_timestamp())
  FROM fence.claim AS c JOIN fence.sidecar AS s ON s.life = c.life
 WHERE c.guard = $1`

	takeClaim = `
INSERT INTO fence.claim AS c (guard, life, epoch, unsettled_after) VALUES ($1, $2, 1, $3)
ON CONFLICT (guard) DO UPDATE
   SET life = EXCLUDED.life, epoch = c.epoch + 1, unsettled_after = EXCLUDED.unsettled_after, settled = false, taken_at = now()
RETURNING c.epoch`

	// settleClaim: this life has ended in order and left nothing in flight, so the next owner needn't wait.
	settleClaim = `UPDATE fence.claim SET settled = true WHERE guard = $1 AND life = $2`

	// dropClaim: the guard is shared from now on.
	dropClaim = `DELETE FROM fence.claim WHERE guard = $1`

	// holdsClaim is a condition: the life $2 owns the guard $1 and is alive.
	holdsClaim = `
SELECT EXISTS (SELECT FROM fence.claim AS c JOIN fence.sidecar AS s ON s.life = c.life WHERE c.guard = $1 AND c.life = $2 AND s.ended_at IS NULL)`
)

// claim is a row of fence.claim.
type claim struct {
	life      uuid.UUID
	settled   bool
	after     time.Duration // its owner's unsettled.after
	owner     string        // the sidecar's id
	alive     bool
	passed    bool // nothing of its owner can take effect any more
	wasThere  bool
	epoch     int64
	takenOver bool // by us, in this transaction
}

func findClaim(ctx context.Context, tx pgx.Tx, guard string) (claim, error) {
	c := claim{wasThere: true}
	err := tx.QueryRow(ctx, readClaim, guard).Scan(&c.life, &c.settled, &c.after, &c.owner, &c.alive, &c.passed)
	if errors.Is(err, pgx.ErrNoRows) {
		return claim{}, nil
	}
	return c, err
}

// takeOver makes a guard this life's own where nobody alive owns it, and returns what it found before.
func takeOver(ctx context.Context, tx pgx.Tx, g config.Guard, life uuid.UUID) (claim, error) {
	found, err := findClaim(ctx, tx, g.Name)
	if err != nil || found.alive {
		return found, err
	}
	if _, err := tx.Exec(ctx, claimAlone, g.Name); err != nil {
		return found, err
	}
	if found, err = findClaim(ctx, tx, g.Name); err != nil || found.alive {
		return found, err
	}
	found.takenOver = true
	return found, tx.QueryRow(ctx, takeClaim, g.Name, life, g.Unsettled.After).Scan(&found.epoch)
}

// takeClaims tries for every exclusive guard that this sidecar doesn't own. What it returns counts only after the commit.
func (s *Store) takeClaims(ctx context.Context, tx pgx.Tx, life uuid.UUID) (map[string]claim, error) {
	found := map[string]claim{}
	for _, g := range s.ordered {
		if !g.Exclusive() || s.claims.of(g.Name).heldBy(life) {
			continue
		}
		c, err := takeOver(ctx, tx, g, life)
		if err != nil {
			return nil, fmt.Errorf("claim guard %s: %w", g.Name, err)
		}
		found[g.Name] = c
	}
	return found, nil
}

// noteClaims has memory know what was found and taken, after the commit.
func (s *Store) noteClaims(found map[string]claim, life uuid.UUID) {
	for name, c := range found {
		own := s.claims.of(name)
		if !c.takenOver {
			if own.stand(c.owner) {
				s.claims.observe(ClaimChange{Guard: name, Owner: c.owner})
			}
			continue
		}
		wait := max(c.after, s.guards[name].unsettled.After)
		if !c.wasThere || c.settled {
			wait = 0
		}
		wait = own.own(life, c.life, wait)
		s.claims.observe(ClaimChange{Guard: name, Owner: s.id, Ours: true, Epoch: c.epoch, Wait: wait})
	}
}

// ClaimChange says who owns a guard from now on.
type ClaimChange struct {
	Guard string
	Owner string // the id of its sidecar
	Ours  bool
	Epoch int64         // counts the owners
	Wait  time.Duration // for which every key counts as unsettled
}

// ObserveClaims has changes of ownership reported.
func (s *Store) ObserveClaims(observe func(ClaimChange)) { s.claims.report(observe) }

// Standby says which guards this sidecar doesn't own, and who does; nil when it owns all that are exclusive.
func (s *Store) Standby() error {
	var errs []error
	for _, g := range s.ordered {
		if g.Exclusive() && !s.claims.of(g.Name).heldBy(s.lives.current()) {
			errs = append(errs, s.claims.of(g.Name).standby(g.Name))
		}
	}
	return errors.Join(errs...)
}

// sharedAgain lets a guard that was exclusive be shared when nothing of its last owner can take effect any more.
func sharedAgain(ctx context.Context, tx pgx.Tx, g config.Guard) error {
	found, err := findClaim(ctx, tx, g.Name)
	switch {
	case err != nil || !found.wasThere:
		return err
	case !found.passed:
		return fmt.Errorf("guard %s: %w: sidecar %s owned it alone (ownership: exclusive), and its requests may take effect for %s after its end",
			g.Name, mark.ErrOtherDefinition, found.owner, found.after)
	}
	_, err = tx.Exec(ctx, dropClaim, g.Name)
	return err
}
