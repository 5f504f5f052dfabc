package filemark

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// A request in flight is a record under its row: checksum, then the text of flightRecord. The checksum covers the row too. The number of records, and the highest row
// that was ever given away, stand under keyRegister: a record that is missing is a request that blocks nobody any more, so it has to be missed.
type flightRecord struct {
	Guard       string     `json:"guard"`
	Key         string     `json:"key"`
	Token       lock.Token `json:"token"`
	Life        string     `json:"life"`
	Sidecar     string     `json:"sidecar,omitempty"`
	Route       string     `json:"route,omitempty"`
	Owner       string     `json:"owner,omitempty"`
	AdmittedAt  time.Time  `json:"admittedAt"`
	UnsettledAt time.Time  `json:"unsettledAt,omitzero"`
}

const checksumSize = 4

func rowKey(row mark.Row) []byte { return binary.BigEndian.AppendUint64(nil, uint64(row)) } //nolint:gosec // rows are above 0

func encodeFlight(row mark.Row, r flightRecord) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(nil, checksum(string(bucketInflight), rowKey(row), text)), text...), nil
}

func decodeFlight(key, value []byte) (mark.Row, flightRecord, error) {
	var r flightRecord
	if len(key) != 8 || len(value) < checksumSize || checksum(string(bucketInflight), key, value[checksumSize:]) != binary.BigEndian.Uint32(value) {
		return 0, r, fmt.Errorf("%w: a request in flight has a wrong checksum", ErrDamaged)
	}
	row := mark.Row(binary.BigEndian.Uint64(key)) //nolint:gosec // checked below
	if err := json.Unmarshal(value[checksumSize:], &r); err != nil || row < 1 {
		return 0, r, fmt.Errorf("%w: a request in flight can't be read", ErrDamaged)
	}
	return row, r, nil
}

// census is what the file says of its requests in flight as a whole.
type census struct {
	last  mark.Row // the highest row that was ever given away
	count uint64   // records that stand
}

const censusSize = 8 + 8 + checksumSize

func (c census) encode() []byte {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.last)) //nolint:gosec // not below 0
	b = binary.BigEndian.AppendUint64(b, c.count)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func readCensus(tx *bbolt.Tx) (census, error) {
	b := tx.Bucket(bucketFormat).Get(keyRegister)
	if len(b) != censusSize || crc32.Checksum(b[:16], crc32.MakeTable(crc32.Castagnoli)) != binary.BigEndian.Uint32(b[16:]) {
		return census{}, fmt.Errorf("%w: the number of its requests in flight can't be read", ErrDamaged)
	}
	return census{mark.Row(binary.BigEndian.Uint64(b)), binary.BigEndian.Uint64(b[8:])}, nil //nolint:gosec // as it was written
}

// readFlights reads and checks all requests in flight.
func readFlights(tx *bbolt.Tx) (map[mark.Row]flightRecord, error) {
	said, err := readCensus(tx)
	if err != nil {
		return nil, err
	}
	records := map[mark.Row]flightRecord{}
	err = tx.Bucket(bucketInflight).ForEach(func(key, value []byte) error {
		row, r, err := decodeFlight(key, value)
		if err == nil && row > said.last {
			err = fmt.Errorf("%w: a request in flight has row %d, the highest that was given away is %d", ErrDamaged, row, said.last)
		}
		records[row] = r
		return err
	})
	if err == nil && uint64(len(records)) != said.count {
		err = fmt.Errorf("%w: it has %d requests in flight, %d were written", ErrDamaged, len(records), said.count)
	}
	return records, err
}

// flight is a request in flight as this process knows it.
type flight struct {
	flightRecord
	row mark.Row
	// known is when this process learned of it, and unsettled when it learned that its outcome is unknown; both with the monotonic clock's reading.
	known, unsettled time.Time
}

type place struct{ guard, key string }

func (f *flight) place() place { return place{f.Guard, f.Key} }

// flights is the register in memory. It shows what is in the file, less what was settled and isn't written yet. Only the goroutine that commits changes anything but
// settled, and only after the commit.
type flights struct {
	mu    sync.Mutex
	life  string              // of this sidecar; empty: none
	begun map[string]struct{} // lives that this process began
	rows  map[mark.Row]*flight
	at    map[place][]*flight // in the order of their rows
	last  mark.Row            // never given away again by this process, not even where the commit failed
	// settled are rows that count as gone from now on, whatever the file still says. It is never larger than rows.
	settled     map[mark.Row]struct{}
	definitions map[string]string // guard → as the file says
	flushing    bool              // a timer runs that has them written
}

func (f *flights) stands(row mark.Row) *flight {
	if _, gone := f.settled[row]; gone {
		return nil
	}
	return f.rows[row]
}

// older are the rows of a place with lower tokens.
func (f *flights) older(at place, token lock.Token) []mark.Row {
	var rows []mark.Row
	for _, one := range f.at[at] {
		if one.Token < token && f.stands(one.row) != nil {
			rows = append(rows, one.row)
		}
	}
	return rows
}

// standing are all rows that stand, of one guard or of all, the oldest first.
func (f *flights) standing(guard string) []*flight {
	var list []*flight
	for row, one := range f.rows {
		if (guard == "" || one.Guard == guard) && f.stands(row) != nil {
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b *flight) int { return int(a.row - b.row) })
	return list
}

// underWay says that a request of this life may still get an answer.
func (f *flights) underWay(one *flight) bool { return one.UnsettledAt.IsZero() && one.Life == f.life }

func (f *flights) add(one *flight) {
	f.rows[one.row] = one
	f.at[one.place()] = append(f.at[one.place()], one) // rows only rise
	f.last = max(f.last, one.row)
}

func (f *flights) remove(row mark.Row) {
	one := f.rows[row]
	delete(f.settled, row)
	if one == nil {
		return
	}
	delete(f.rows, row)
	at := slices.DeleteFunc(f.at[one.place()], func(other *flight) bool { return other.row == row })
	if len(at) == 0 {
		delete(f.at, one.place())
		return
	}
	f.at[one.place()] = at
}
