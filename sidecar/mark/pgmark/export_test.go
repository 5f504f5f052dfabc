package pgmark

import "time"

// Age makes what is in memory of exclusive guards older by an hour.
func Age(s *Store) {
	s.inOwned(func(o *owned) {
		o.mu.Lock()
		defer o.mu.Unlock()
		for _, r := range o.rows {
			r.admitted = r.admitted.Add(-time.Hour)
			if !r.unsettled.IsZero() {
				r.unsettled = r.unsettled.Add(-time.Hour)
			}
		}
		if !o.until.mono.IsZero() {
			o.until = moment{o.until.mono.Add(-time.Hour), o.until.wall.Add(-time.Hour)}
		}
	})
}
