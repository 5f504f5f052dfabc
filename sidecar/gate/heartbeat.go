package gate

import "fenceline/sidecar/mark"

// beaten takes a heartbeat's answer. Own rows that nobody here knows belong to admissions whose answer was lost: nothing was sent for them. Unsettled
// requests whose rows are gone were settled by an operator or by time.
func (m *Machine) beaten(e Beaten) []Action {
	if e.Pulse.Lost {
		m.live = false
		return nil
	}
	if e.Asked.Since(m.beat) > 0 {
		m.beat = e.Asked
	}
	out := m.missing(e.Pulse.Own)
	for _, row := range e.Pulse.Own {
		_, known := m.byRow[row]
		if _, over := m.over[row]; !known && !over {
			m.over[row] = struct{}{}
			out = append(out, SettleRow{row})
		}
	}
	return out
}

// begin starts a life. What is unsettled under a former one is the business of the store from now on.
func (m *Machine) begin(asked Instant) []Action {
	m.life, m.beat, m.live = m.life+1, asked, true
	var out []Action
	for id, r := range m.requests {
		if r.phase == Unsettled {
			out = append(out, m.forget(id, r)...)
		}
	}
	return out
}

// missing finds requests whose rows the store showed before and doesn't any more.
func (m *Machine) missing(own []mark.Row) []Action {
	there := make(map[mark.Row]bool, len(own))
	for _, row := range own {
		there[row] = true
	}
	var out []Action
	for id, r := range m.requests {
		switch {
		case r.life != m.life || r.row == 0:
		case there[r.row]:
			r.seen = true
		case r.seen && r.phase == Unsettled:
			out = append(out, m.forget(id, r)...)
			out = append(out, m.wake(r.place())...)
		case r.seen:
			r.gone = true
		}
	}
	return out
}
