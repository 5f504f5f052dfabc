package pgmark

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// firstOwn is above every row that the database gives away, so that the rows of exclusive guards, which are in memory alone, can be told from those.
const firstOwn mark.Row = 1 << 62

// claims are the exclusive guards as this process knows them. They outlive configurations.
type claims struct {
	mu      sync.Mutex
	guards  map[string]*owned
	next    mark.Row
	hint    func(guard, key string)
	changed func(ClaimChange)
}

func newClaims() *claims { return &claims{guards: map[string]*owned{}, next: firstOwn} }

func (c *claims) of(guard string) *owned {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.guards[guard]
	if o == nil {
		o = &owned{claims: c, rows: map[mark.Row]*ownRow{}, at: map[string][]*ownRow{}, blocker: c.newRow()}
		c.guards[guard] = o
	}
	return o
}

// newRow wants the lock.
func (c *claims) newRow() mark.Row {
	c.next++
	return c.next
}

func (c *claims) row() mark.Row {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newRow()
}

func (c *claims) report(to func(ClaimChange)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changed = to
}

func (c *claims) observe(change ClaimChange) {
	c.mu.Lock()
	to := c.changed
	c.mu.Unlock()
	if to != nil {
		to(change)
	}
}

func (c *claims) hintTo(hint func(guard, key string)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hint = hint
}

// gone tells those who wait for a key that something of it went.
func (c *claims) gone(places [][2]string) {
	c.mu.Lock()
	hint := c.hint
	c.mu.Unlock()
	for _, at := range places {
		if hint != nil {
			hint(at[0], at[1])
		}
	}
}

// owned is an exclusive guard: whose it is, and its requests in flight while it is ours.
type owned struct {
	claims *claims

	mu   sync.Mutex
	life uuid.UUID // the life of ours that owns it; zero: none
	// former is the life that owned it before, where that was ours too: then memory knows everything that is in flight.
	former  uuid.UUID
	other   string // who owns it instead
	rows    map[mark.Row]*ownRow
	at      map[string][]*ownRow
	blocker mark.Row // stands for everything that a former owner may have in flight
	until   moment   // when it goes
}

// ownRow is a request in flight.
type ownRow struct {
	row       mark.Row
	entry     mark.Entry
	life      uuid.UUID
	admitted  time.Time
	unsettled time.Time // with the monotonic clock's reading; zero: its outcome isn't called unknown
}

// moment is a time that both clocks must have passed.
type moment struct {
	mono time.Time
	wall time.Time // without the monotonic clock's reading
}

func after(wait time.Duration) moment {
	if wait <= 0 {
		return moment{}
	}
	at := time.Now().Add(wait)
	return moment{mono: at, wall: at.Round(0)}
}

func (m moment) passed() bool {
	now := time.Now()
	return !now.Before(m.mono) && !now.Round(0).Before(m.wall)
}

func (o *owned) heldBy(life uuid.UUID) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.life != uuid.Nil && o.life == life
}

// stand notes that somebody else owns the guard, and says whether that is news.
func (o *owned) stand(owner string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	news := o.other != owner
	o.other = owner
	return news
}

func (o *owned) standby(guard string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	owner := o.other
	if owner == "" {
		owner = "nobody yet"
	}
	return fmt.Errorf("%w: guard %s (ownership: exclusive) is served by %s", mark.ErrStandby, guard, owner)
}

// own begins an ownership. Every key counts as unsettled for wait, unless the owner before was this process: then its rows are all here.
func (o *owned) own(life, before uuid.UUID, wait time.Duration) (waits time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.former == uuid.Nil || o.former != before {
		o.rows, o.at, o.until = map[mark.Row]*ownRow{}, map[string][]*ownRow{}, after(wait)
		waits = wait
	}
	o.life, o.former, o.other = life, uuid.Nil, ""
	return waits
}

// lose ends an ownership: what is in flight is unsettled from now on. It says whether nothing was.
func (o *owned) lose() (settled bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.life == uuid.Nil {
		return false
	}
	settled = len(o.rows) == 0 && o.until.passed()
	for _, r := range o.rows {
		r.unsettle()
	}
	o.life, o.former = uuid.Nil, o.life
	return settled
}

func (r *ownRow) unsettle() {
	if r.unsettled.IsZero() {
		r.unsettled = time.Now()
	}
}

// enter puts a request among those in flight, and decides where memory can: seen is the mark as this sidecar has seen it committed, or 0.
//
// It looks at the mark and adds the row under one lock, and whoever raises the mark looks for older rows under the same lock after the raise. So of two
// requests either the lower one's row is seen by the higher one, or the lower one sees the raised mark. An equal token needs no store for that reason, and because nobody else
// raises the marks of a guard that is ours. Until its raise is committed a row is there for nothing, which only lets others wait.
func (o *owned) enter(e mark.Entry, life uuid.UUID, seen func() lock.Token) (mark.Registration, bool, error) {
	row := o.claims.row()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.life == uuid.Nil || o.life != life {
		return mark.Registration{}, false, mark.ErrStandby
	}
	highest := seen()
	if highest > e.Token {
		return mark.Registration{Decision: mark.Decision{Verdict: mark.FencedOut, Highest: highest}}, true, nil
	}
	one := &ownRow{row: row, entry: e, life: life, admitted: time.Now()}
	o.rows[row], o.at[e.Key] = one, append(o.at[e.Key], one)
	if highest == e.Token && !e.Newer {
		return mark.Registration{Decision: mark.Decision{Verdict: mark.Admitted}, Row: row, Older: o.older(e)}, true, nil
	}
	return mark.Registration{Row: row}, false, nil
}

// look finds the older requests of one whose raise is committed.
func (o *owned) look(e mark.Entry) []mark.Row {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.older(e)
}

func (o *owned) older(e mark.Entry) []mark.Row {
	var out []mark.Row
	if !o.until.passed() {
		out = append(out, o.blocker)
	}
	for _, r := range o.at[e.Key] {
		if r.entry.Token < e.Token {
			out = append(out, r.row)
		}
	}
	return out
}

// sight is what a later look finds in memory, after what time releases.
func (o *owned) sight(e mark.Entry, row mark.Row, life uuid.UUID, released func(*ownRow) bool) mark.Sight {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range slices.Clone(o.at[e.Key]) {
		if r.row != row && released(r) {
			o.drop(r.row)
		}
	}
	own := o.rows[row]
	return mark.Sight{Present: own != nil && own.unsettled.IsZero() && own.life == life && o.life == life, Older: o.older(e)}
}

// remove takes rows out, and returns where they were.
func (o *owned) remove(guard string, which func(*ownRow) bool) (places [][2]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for row, r := range o.rows {
		if which(r) {
			o.drop(row)
			places = append(places, [2]string{guard, r.entry.Key})
		}
	}
	return places
}

// settle takes out those of the rows that are here.
func (o *owned) settle(rows []mark.Row) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, row := range rows {
		o.drop(row)
	}
}

func (o *owned) unsettle(rows []mark.Row) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, row := range rows {
		if r := o.rows[row]; r != nil {
			r.unsettle()
		}
	}
}

func (o *owned) drop(row mark.Row) {
	r := o.rows[row]
	if r == nil {
		return
	}
	delete(o.rows, row)
	rest := slices.DeleteFunc(o.at[r.entry.Key], func(other *ownRow) bool { return other.row == row })
	if len(rest) == 0 {
		delete(o.at, r.entry.Key)
		return
	}
	o.at[r.entry.Key] = rest
}

// list returns copies of the rows, the oldest first.
func (o *owned) list() []ownRow {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]ownRow, 0, len(o.rows))
	for _, r := range o.rows {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b ownRow) int { return int(a.row - b.row) })
	return out
}
