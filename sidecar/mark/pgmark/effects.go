package pgmark

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"fenceline/internal/postgres"
	"fenceline/lockd/lock"
	"fenceline/sidecar/config"
	"fenceline/sidecar/mark"
)

// The statements of one group of registrations, in the order in which they run, all in one transaction and one round trip. Parameters are arrays with
// one element for each entry.
//
// Each statement is a step of its own because in READ COMMITTED a statement sees what was committed before it began, and the order of seeing is what the gate stands
// on: lock, then raise and register, and only then look. A look that came before would miss whoever registers in between; a look within the
// same statement as the raise would miss whoever that raise waited for.
type effectStatements struct {
	// free locks the marks' rows that are to be raised, without waiting; waiting waits.
	free, waiting string
	raise         string
	look          string
	see           string // for a later look: the mark alone
}

// lockKeys takes an advisory lock on each key for the transaction, and notes which ones it got. Shared where the mark is believed to be the token already: holders of
// one token don't exclude each other. Whoever raises the mark needs it alone. So between the raise and the commit nobody else registers for the key, and
// whoever registered before has committed: without the lock an equal token, which writes nothing to the mark, could commit after a higher one has looked.
//
// A group never waits for it: what isn't free goes alone.
const lockKeys = `
SELECT set_config('fence.got', COALESCE(array_agg(g.i)::text, '{}'), true)
  FROM unnest($1::int[], $2::text[], $3::bool[]) AS g (i, key, shared)
 WHERE CASE WHEN g.shared THEN pg_try_advisory_xact_lock_shared(hashtextextended($4::text || '/' || g.key, 0))
            ELSE pg_try_advisory_xact_lock(hashtextextended($4::text || '/' || g.key, 0)) END`

// lockKeyWaiting is the same for an entry that goes alone: it waits, for lock_timeout at most. The lock is always exclusive here: this is also the way of those whose
// belief was wrong.
const lockKeyWaiting = `
SELECT set_config('fence.got', $1::int[]::text, true)
  FROM (SELECT pg_advisory_xact_lock(hashtextextended($4::text || '/' || k, 0)) FROM unnest($2::text[]) AS k WHERE NOT ($3::bool[])[1]) AS locked`

// readCommitted holds for one transaction, whatever default the database or the role has: with one snapshot for all statements the look would see the register as it
// was before the wait for the key's lock, and miss whoever registered meanwhile. It must be the pipeline's first statement, since the isolation can't be changed after the
// first snapshot. It isn't SET LOCAL or SET TRANSACTION, which the server answers with a warning here; the server begins each transaction with its
// default, so nothing stays behind in the session.
const readCommitted = `SET transaction_isolation TO 'read committed'`

// entries makes a table of the parameters from $1 on.
const entries = `unnest($1::int[], $2::text[], $3::bool[], $4::bigint[], $5::bigint[], $6::bool[], $7::text[], $8::text[]) AS g (i, key, shared, token, raise, newer, route, owner)`

const got = `current_setting('fence.got')::int[]`

// buildEffects makes a guard's statements.
//
// raise: a mark is raised where it is lower than the entry wants; an entry whose token is the mark already (or that asks for less, a barrier) writes nothing
// to the mark: where marks live in the resource's own row that write would queue behind the resource's transaction. Only what was raised or found so is registered, in the same
// statement, and only under a life that wasn't declared dead: rows of a dead one are unsettled by whoever declared it so, or by the next heartbeat of anybody.
func buildEffects(g config.Guard) effectStatements {
	at := locate(g)
	joined := at.joined("m", "g")
	stamp := ""
	if at.stamp != "" {
		stamp = ", " + at.stamp + " = now()"
	}
	rows := func(skip string) string {
		return fmt.Sprintf(`
SELECT set_config('fence.free', COALESCE((SELECT array_agg(x.i)::text
         FROM (SELECT g.i FROM unnest($1::int[], $2::text[], $3::bool[], $4::bigint[]) AS g (i, key, shared, raise) JOIN %[1]s AS m ON %[2]s
                WHERE g.i = ANY (%[3]s) AND NOT g.shared AND m.%[4]s < g.raise
                ORDER BY m.%[5]s FOR NO KEY UPDATE OF m%[6]s) AS x), '{}'), true)`, at.table, joined, got, at.token, at.key, skip)
	}
	insert, inserted := "", ""
	if g.Mark.Missing == config.MissingInsert {
		conflict, columns, values := at.key, "", ""
		if at.stamp != "" {
			columns, values = ", "+at.stamp, ", now()"
		}
		if at.guard != "" {
			conflict, columns, values = "guard, "+at.key, columns+", guard", values+", "+at.guard
		}
		insert = fmt.Sprintf(`,
n AS (INSERT INTO %[1]s AS m (%[2]s, %[3]s%[4]s)
      SELECT g.key::%[5]s, g.raise%[6]s FROM g
       WHERE NOT g.shared AND g.raise > 0 AND g.token <= $9::bigint AND NOT EXISTS (SELECT FROM %[1]s AS m WHERE %[7]s)
      ON CONFLICT (%[8]s) DO NOTHING RETURNING m.%[2]s::text AS key)`, at.table, at.key, at.token, columns, at.keyType, values, joined, conflict)
		// A barrier of the lowest token raises nothing, so it needs no mark.
		inserted = fmt.Sprintf(" UNION ALL SELECT g.i FROM g JOIN n ON n.key = g.key"+
			" UNION ALL SELECT g.i FROM g WHERE g.raise = 0 AND NOT EXISTS (SELECT FROM %s AS m WHERE %s)", at.table, joined)
	}
	return effectStatements{
		free:    rows(" SKIP LOCKED"),
		waiting: rows(""),
		raise: fmt.Sprintf(`
WITH g AS (SELECT * FROM `+entries+` WHERE g.i = ANY (`+got+`)),
r AS (UPDATE %[1]s AS m SET %[2]s = g.raise%[3]s FROM g
       WHERE %[4]s AND g.i = ANY (current_setting('fence.free')::int[]) AND m.%[2]s < g.raise AND g.token - m.%[2]s <= $9::bigint
      RETURNING g.i)%[5]s,
e AS (SELECT g.i FROM g JOIN %[1]s AS m ON %[4]s WHERE m.%[2]s >= g.raise AND m.%[2]s <= g.token AND NOT (g.newer AND m.%[2]s = g.token) AND g.token - m.%[2]s <= $9::bigint)
INSERT INTO fence.inflight (guard, key, token, life, route, owner_id)
SELECT $10::text, g.key, g.token, s.life, g.route, g.owner
  FROM (SELECT i FROM r UNION ALL SELECT i FROM e%[6]s) AS a JOIN g ON g.i = a.i
  JOIN fence.sidecar AS s ON s.life = $11::uuid AND s.ended_at IS NULL
RETURNING key, id, `+durable, at.table, at.token, stamp, joined, insert, inserted),
		look: fmt.Sprintf(`
SELECT g.i, g.i = ANY (`+got+`), m.%[2]s, g.i = ANY (current_setting('fence.free')::int[]),
       ARRAY(SELECT f.id FROM fence.inflight AS f WHERE f.guard = $3::text AND f.key = g.key AND f.token < g.token),
       EXISTS (SELECT FROM fence.sidecar AS s WHERE s.life = $5::uuid AND s.ended_at IS NULL)
  FROM unnest($1::int[], $2::text[], $4::bigint[]) AS g (i, key, token) LEFT JOIN %[1]s AS m ON %[3]s`, at.table, at.token, joined),
		see: fmt.Sprintf("SELECT m.%s FROM %s AS m WHERE %s", at.token, at.table, at.is("m")),
	}
}

// joined is the condition that finds the row of a parameter's key.
func (l location) joined(table, parameter string) string {
	condition := table + "." + l.key + " = " + parameter + ".key::" + l.keyType
	if l.guard != "" {
		condition = table + ".guard = " + l.guard + " AND " + condition
	}
	return condition
}

// asked is one registration on its way through a group.
type asked struct {
	entry  mark.Entry
	shared bool // the mark is believed to be the token
}

// answered is what its group brought.
type answered struct {
	mark.Registration
	err   error
	alone bool // nothing was decided in the group: somebody else holds the key or its row, or a neighbour's data was at fault
}

// register runs a group's transaction. A group of one that goes alone waits for locks, all others take what is free.
func (s *Store) register(ctx context.Context, g guard, group []*asked, alone bool) ([]answered, error) {
	p := parameters(group)
	life := s.lives.current()
	batch := &pgx.Batch{}
	patience := s.timeout - s.timeout/4
	batch.Queue(readCommitted)
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: patience, LockTimeout: min(patience, lockPatience)})
	keys, rows := lockKeys, g.effects.free
	if alone {
		keys, rows = lockKeyWaiting, g.effects.waiting
	}
	batch.Queue(keys, p.i, p.key, p.shared, g.name)
	batch.Queue(rows, p.i, p.key, p.shared, p.raise)
	placed := map[string]mark.Row{}
	batch.Queue(g.effects.raise, p.i, p.key, p.shared, p.token, p.raise, p.newer, p.route, p.owner, s.maxJump, g.name, life).Query(func(rows pgx.Rows) error {
		return s.readRows(rows, placed)
	})
	out := make([]answered, len(group))
	batch.Queue(g.effects.look, p.i, p.key, g.name, p.token, life).Query(func(rows pgx.Rows) error {
		defer rows.Close()
		for rows.Next() {
			if err := s.readLook(rows, g, group, placed, alone, out); err != nil {
				return err
			}
		}
		return rows.Err()
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err // also when only the commit failed: an unknown outcome is no admission
	}
	s.remember(g.name, group, out)
	return out, nil
}

// lockPatience stays below the server's deadlock_timeout (1 s by default), so that the resource is never chosen as a deadlock's victim.
const lockPatience = 800 * time.Millisecond

// array parameters of a group.
type arrays struct {
	i             []int32
	key           []string
	shared, newer []bool
	token, raise  []int64
	route, owner  []string
}

func parameters(group []*asked) arrays {
	var p arrays
	for i, a := range group {
		p.i, p.key, p.shared = append(p.i, int32(i)), append(p.key, a.entry.Key), append(p.shared, a.shared)
		p.newer, p.token, p.raise = append(p.newer, a.entry.Newer), append(p.token, int64(a.entry.Token)), append(p.raise, int64(a.entry.Raise))
		p.route, p.owner = append(p.route, a.entry.Route), append(p.owner, strings.ToValidUTF8(a.entry.Owner, ""))
	}
	return p
}

func (s *Store) readRows(rows pgx.Rows, placed map[string]mark.Row) error {
	defer rows.Close()
	for rows.Next() {
		var key string
		var row mark.Row
		var durable bool
		if err := rows.Scan(&key, &row, &durable); err != nil {
			return err
		}
		if !durable {
			s.checked.Store(false)
			return postgres.ErrNotDurable
		}
		placed[key] = row
	}
	return rows.Err()
}

// readLook reads one entry's line of the look and decides what came of it.
func (s *Store) readLook(rows pgx.Rows, g guard, group []*asked, placed map[string]mark.Row, alone bool, out []answered) error {
	var i int32
	var locked, free, alive bool
	var highest *int64
	var older []mark.Row
	if err := rows.Scan(&i, &locked, &highest, &free, &older, &alive); err != nil {
		return err
	}
	e := group[i].entry
	if row := placed[e.Key]; row != 0 {
		out[i] = answered{Registration: mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: row, Older: older}}
		return nil
	}
	if !alive {
		out[i].err = mark.ErrNoLife
		return nil
	}
	var seen lock.Token
	if highest != nil {
		seen = lock.Token(*highest)
	}
	decision := e.Judge(seen, highest != nil, g.mark.Missing == config.MissingReject, s.maxJump)
	switch {
	case decision.Verdict != mark.Admitted:
		out[i].Decision = decision
	case !alone: // the key or its row was held, or the belief about the mark was wrong
		out[i].alone = true
	default:
		// It had the key and its row for itself, and the mark that it sees would admit it: somebody who asks nobody for the key wrote it meanwhile.
		out[i].err = fmt.Errorf("guard %s: %w: it stands at %d, below what refused %d a moment before", g.name, mark.ErrWentBack, seen, e.Token)
	}
	return nil
}

// Register implements mark.Register.
func (s *Store) Register(ctx context.Context, e mark.Entry) (mark.Registration, error) {
	g, ok := s.guards[e.Guard]
	if !ok || g.readOnly {
		return mark.Registration{}, fmt.Errorf("no guard %s that orders effects", e.Guard)
	}
	if highest := s.marks.get(e.Guard, e.Key); highest > e.Token {
		// A mark that was seen committed is never lowered while a sidecar serves the guard (ResetMark), so this is what the store would say, too.
		return mark.Registration{Decision: mark.Decision{Verdict: mark.FencedOut, Highest: highest}}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Registration{}, fmt.Errorf("register: %w", err)
	}
	if !s.lives.alive() {
		return mark.Registration{}, mark.ErrNoLife
	}
	a := &asked{entry: e, shared: !e.Newer && s.marks.get(e.Guard, e.Key) == e.Token}
	answer, err := s.groups[e.Guard].do(ctx, a)
	if err == nil && answer.alone {
		answer, err = s.registerAlone(ctx, g, a)
	}
	if err != nil {
		return s.registerFault(ctx, err)
	}
	return answer.Registration, answer.err
}

func (s *Store) registerAlone(ctx context.Context, g guard, a *asked) (answered, error) {
	own := &asked{entry: a.entry}
	select {
	case s.alone <- struct{}{}:
		defer func() { <-s.alone }()
	case <-ctx.Done():
		return answered{}, mark.ErrBusy
	}
	out, err := s.register(ctx, g, []*asked{own}, true)
	if err != nil {
		return answered{}, err
	}
	return out[0], nil
}

const lockNotAvailable = "55P03"

func (s *Store) registerFault(ctx context.Context, err error) (mark.Registration, error) {
	switch {
	case errors.Is(err, mark.ErrBusy):
		return mark.Registration{}, err
	case postgres.State(err) == lockNotAvailable:
		return mark.Registration{}, fmt.Errorf("%w: %w", mark.ErrBusy, postgres.Classify(ctx, err))
	}
	decision, err := s.fault(ctx, err)
	return mark.Registration{Decision: decision}, err
}

// aGroupAtFault says whether a group failed for a reason that may be one member's: the server said so, and the connection is in order.
func aGroupAtFault(err error) bool {
	var server *pgconn.PgError
	if !errors.As(err, &server) {
		return false
	}
	switch server.Code[:2] {
	case "22", "23", "40", "55", "21":
		return true
	}
	return false
}

const (
	// removeReleased: what was unsettled for longer than the guard allows blocks nobody any more. The store's clock decides, the same for all sidecars.
	removeReleased = `
DELETE FROM fence.inflight WHERE guard = $1 AND key = $2 AND token < $3 AND unsettled_at < clock_timestamp() - $4::interval`
	lookOwn = `
SELECT EXISTS (SELECT FROM fence.inflight AS f JOIN fence.sidecar AS s ON s.life = f.life
                WHERE f.id = $1 AND f.unsettled_at IS NULL AND s.ended_at IS NULL)`
	lookOlder = `SELECT id FROM fence.inflight WHERE guard = $1 AND key = $2 AND token < $3`
)

// Look implements mark.Register. The statements run in this order, each seeing what was committed before it: the mark first, so that whoever raises it afterwards
// finds our row.
func (s *Store) Look(ctx context.Context, e mark.Entry, row mark.Row) (mark.Sight, error) {
	g, ok := s.guards[e.Guard]
	if !ok {
		return mark.Sight{}, fmt.Errorf("no guard %s", e.Guard)
	}
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	if err := s.trusted(ctx); err != nil {
		return mark.Sight{}, fmt.Errorf("look: %w", err)
	}
	var sight mark.Sight
	batch := &pgx.Batch{}
	postgres.QueueSetup(batch, postgres.TxOptions{StatementTimeout: s.timeout - s.timeout/4, LockTimeout: lockPatience})
	if g.unsettled.Releases() {
		batch.Queue(removeReleased, e.Guard, e.Key, int64(e.Token), g.unsettled.After)
	}
	batch.Queue(g.effects.see, e.Key).QueryRow(func(r pgx.Row) error {
		err := r.Scan(&sight.Mark)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		return err
	})
	batch.Queue(lookOwn, int64(row)).QueryRow(func(r pgx.Row) error { return r.Scan(&sight.Present) })
	batch.Queue(lookOlder, e.Guard, e.Key, int64(e.Token)).Query(func(rows pgx.Rows) (err error) {
		sight.Older, err = pgx.CollectRows(rows, pgx.RowTo[mark.Row])
		return err
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return mark.Sight{}, fmt.Errorf("look: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return sight, nil
}

const (
	// notDurable: a settlement that a crash loses lets others wait, and nothing else.
	notDurable  = `SELECT set_config('synchronous_commit', 'off', true), set_config('statement_timeout', $1, true), set_config('lock_timeout', $1, true)`
	removeRows  = `DELETE FROM fence.inflight WHERE id = ANY ($1) RETURNING guard, key, token`
	unsettleRow = `UPDATE fence.inflight SET unsettled_at = clock_timestamp() WHERE id = ANY ($1) AND unsettled_at IS NULL`

	// hintWaiting tells other lives that wait for a key. A notice makes the commits of all transactions with one wait for each other, so there is one only
	// where somebody waits.
	hintWaiting = `
SELECT pg_notify('fence_settled', w.guard || ' ' || w.key)
  FROM (SELECT DISTINCT f.guard, f.key FROM fence.inflight AS f JOIN unnest($1::text[], $2::text[], $3::bigint[]) AS d (guard, key, token)
            ON f.guard = d.guard AND f.key = d.key AND f.token > d.token
         WHERE f.life <> $4::uuid) AS w`
)

// Settle implements mark.Register.
func (s *Store) Settle(ctx context.Context, rows []mark.Row) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	var guards, keys []string
	var tokens []int64
	batch := &pgx.Batch{}
	batch.Queue(notDurable, fmt.Sprintf("%dms", s.timeout.Milliseconds()))
	batch.Queue(removeRows, numbers(rows)).Query(func(r pgx.Rows) error {
		defer r.Close()
		for r.Next() {
			var guard, key string
			var token int64
			if err := r.Scan(&guard, &key, &token); err != nil {
				return err
			}
			guards, keys, tokens = append(guards, guard), append(keys, key), append(tokens, token)
		}
		return r.Err()
	})
	if err := s.pool.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("settle: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	s.hint(ctx, guards, keys, tokens)
	return nil
}

// hint is lost when it fails; whoever waits looks again by himself.
func (s *Store) hint(ctx context.Context, guards, keys []string, tokens []int64) {
	if len(guards) > 0 {
		_, _ = s.pool.Exec(ctx, hintWaiting, guards, keys, tokens, s.lives.current())
	}
}

func numbers(rows []mark.Row) []int64 {
	out := make([]int64, 0, len(rows))
	for _, row := range rows {
		out = append(out, int64(row))
	}
	return out
}

// Unsettle implements mark.Register.
func (s *Store) Unsettle(ctx context.Context, rows []mark.Row) error {
	ctx, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	if _, err := s.pool.Exec(ctx, unsettleRow, numbers(rows)); err != nil {
		return fmt.Errorf("unsettle: %w: %w", mark.ErrUnavailable, postgres.Classify(ctx, err))
	}
	return nil
}
