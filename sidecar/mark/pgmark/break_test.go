package pgmark

import (
	"context"
	"strings"
	"time"

	"fenceline/sidecar/mark"
)

// Mistake is a way to write the register's statements wrongly.
type Mistake string

// The mistakes. NoMistake is none.
const (
	NoMistake Mistake = "none"
	// EqualUnlocked: an equal token registers without the key's lock.
	EqualUnlocked Mistake = "an equal token takes no lock"
	// LookFirst: the look comes before the key's lock and the raise.
	LookFirst Mistake = "looks before it locks and raises"
	// LookWithin: the look is a sub-select of the statement that raises; nothing is locked before.
	LookWithin Mistake = "locks, raises and looks in one statement"
	// LookWithinLock: the same, but the key's lock comes before, in a statement of its own. That lock alone keeps the order, as the look in a statement of its own alone
	// does where new tokens meet: each covers the other's loss.
	LookWithinLock Mistake = "raises and looks in one statement, behind the lock"
	// Unregistered: the mark is raised and nothing is registered.
	Unregistered Mistake = "registers nothing"
	// WaitsForRows, WaitsForLocks: a group waits for what somebody else holds.
	WaitsForRows  Mistake = "a group waits for rows"
	WaitsForLocks Mistake = "a group waits for keys"
)

// rowsOfKey keeps the rows of a group's keys, for a look that only reads them later.
const (
	keptRows = `COALESCE((SELECT jsonb_agg(jsonb_build_object('id', f.id, 'token', f.token))::text FROM fence.inflight AS f WHERE f.guard = $GUARD AND f.key = $KEY), '[]')`
	lookKept = `
SELECT g.i, (SELECT max(m.token) FROM fence.mark AS m WHERE m.guard = $3::text AND m.key = g.key),
       ARRAY(SELECT (x->>'id')::bigint FROM jsonb_array_elements(COALESCE(NULLIF(current_setting('fence.kept', true), ''), '[]')::jsonb) AS x WHERE (x->>'token')::bigint < g.token),
       $5::uuid IS NOT NULL
  FROM unnest($1::int[], $2::text[], $4::bigint[]) AS g (i, key, token)`
)

func kept(guard, key string) string {
	return "set_config('fence.kept', " + strings.NewReplacer("$GUARD", guard, "$KEY", key).Replace(keptRows) + ", true)"
}

func replace(text *string, from, to string) {
	if !strings.Contains(*text, from) {
		panic("the statement was changed: it doesn't contain " + from) //nolint:forbidigo // a test that breaks nothing shows nothing
	}
	*text = strings.Replace(*text, from, to, 1)
}

// Break makes a mistake in every guard. Those about looks are for marks of the sidecar's own and one key.
func Break(s *Store, how Mistake) {
	for name, g := range s.guards {
		e := &g.effects
		switch how {
		case NoMistake:
		case EqualUnlocked:
			replace(&e.lock, "WHEN g.shared THEN", "WHEN g.shared THEN true WHEN false THEN")
		case LookFirst:
			for _, text := range []*string{&e.lock, &e.lockWaiting} {
				replace(text, "SELECT ", "SELECT "+kept("$4::text", "ANY ($2::text[])")+", ")
			}
			e.look = lookKept
		case LookWithin, LookWithinLock:
			if how == LookWithin {
				e.lock = `SELECT set_config('fence.got', $1::int[]::text, true) WHERE $2::text[] IS NOT NULL AND $3::bool[] IS NOT NULL AND $4::text IS NOT NULL`
				e.lockWaiting = e.lock
				e.free = `SELECT set_config('fence.free', $1::int[]::text, true) WHERE $2::text[] IS NOT NULL AND $3::bool[] IS NOT NULL AND $4::bigint[] IS NOT NULL`
				e.waiting = e.free
			}
			replace(&e.raise, "RETURNING key, id, ", "RETURNING key, id, "+kept("inflight.guard", "inflight.key")+" IS NOT NULL AND ")
			e.look = lookKept
		case Unregistered:
			replace(&e.raise, "INSERT INTO fence.inflight (guard, key, token, life, route, owner_id)\nSELECT $10::text, g.key, g.token, s.life, g.route, g.owner\n",
				"SELECT g.key, (random() * 1e15)::bigint + 1, "+durable+" AND $10::text IS NOT NULL\n")
			replace(&e.raise, "RETURNING key, id, "+durable, "")
		case WaitsForRows:
			e.free = e.waiting
			replace(&g.admit.free, " SKIP LOCKED", "")
		case WaitsForLocks:
			e.lock = `
SELECT set_config('fence.got', COALESCE(array_agg(g.i)::text, '{}'), true)
  FROM (SELECT g.i, pg_advisory_xact_lock(hashtextextended($4::text || '/' || g.key, 0)) FROM unnest($1::int[], $2::text[], $3::bool[]) AS g (i, key, shared)) AS g`
		}
		s.guards[name], s.admissions[name] = g, s.newAdmissions(g)
		if g.config.OrdersEffects() {
			s.groups[name] = s.newGroups(g)
		}
	}
}

// RegisterTogether sends entries of one guard as one group, and says which of them it left to go alone.
func RegisterTogether(ctx context.Context, s *Store, entries ...mark.Entry) (answers []mark.Registration, alone []bool, err error) {
	var group []*registering
	for _, e := range entries {
		group = append(group, &registering{Key: e.Key, Ask: asked{entry: e}})
	}
	err = s.register(ctx, s.guards[entries[0].Guard], group, false)
	for _, m := range group {
		answers, alone = append(answers, m.Answer), append(alone, m.Retry)
	}
	return answers, alone, err
}

// AdmitTogether sends admissions of one guard as one group, and says which of them it left to go alone.
func AdmitTogether(ctx context.Context, s *Store, admissions ...mark.Admission) (answers []mark.Decision, alone []bool, err error) {
	var group []*admitting
	for _, a := range admissions {
		group = append(group, &admitting{Key: a.Key, Ask: a})
	}
	err = s.admit(ctx, s.guards[admissions[0].Guard], group)
	for _, m := range group {
		answers, alone = append(answers, m.Answer), append(alone, m.Retry)
	}
	return answers, alone, err
}

// RememberMarks sets how long a mark that was seen refuses lower tokens.
func RememberMarks(s *Store, d time.Duration) { s.remembered = d }

// AgeMarks makes what is remembered of marks older than it may be.
func AgeMarks(s *Store) {
	s.marks.mu.Lock()
	defer s.marks.mu.Unlock()
	for id, one := range s.marks.seen {
		one.at = one.at.Add(-2 * s.remembered)
		s.marks.seen[id] = one
	}
}
