package filemark

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"

	"fenceline/lockd/lock"
	"fenceline/sidecar/mark"
)

// Change is one mark that an operator set by hand, or one request in flight that an operator settled. It stays in the file.
type Change struct {
	At       time.Time  `json:"at"`
	Guard    string     `json:"guard"`
	Key      string     `json:"key"`
	From     lock.Token `json:"from,omitempty"`
	To       lock.Token `json:"to,omitempty"`
	Operator string     `json:"operator"`
	Reason   string     `json:"reason"`
	Settled  mark.Row   `json:"settled,omitempty"` // instead of From and To
	Token    lock.Token `json:"token,omitempty"`   // of the settled request
}

// ErrUnexpected means that a mark isn't what the operator believed.
var ErrUnexpected = errors.New("the mark isn't the expected one")

// Reset sets a mark from one token to another, lower or higher, and records who did so and why, in one transaction. It is for a file that no sidecar
// has open, which the file's lock makes sure of. A mark that isn't From is left alone.
func (f *File) Reset(c Change) error {
	err := guarded(func() error { return f.db.Update(func(tx *bbolt.Tx) error { return reset(tx, c) }) })
	if err != nil {
		return fmt.Errorf("reset mark: %w", err)
	}
	return nil
}

func reset(tx *bbolt.Tx, c Change) error {
	marks := tx.Bucket(bucketMarks).Bucket([]byte(c.Guard))
	if marks == nil {
		return fmt.Errorf("the file has no guard %s", c.Guard)
	}
	highest, found, err := get(marks, c.Guard, c.Key)
	switch {
	case err != nil:
		return err
	case !found:
		return fmt.Errorf("guard %s has no mark for this key", c.Guard)
	case highest != c.From:
		return fmt.Errorf("%w: it is %d, not %d; nothing was changed", ErrUnexpected, highest, c.From)
	}
	if err := marks.Put([]byte(c.Key), encode(c.Guard, []byte(c.Key), c.To, c.At)); err != nil {
		return err
	}
	return record(tx, c)
}

func record(tx *bbolt.Tx, c Change) error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	changes := tx.Bucket(bucketResets)
	sequence, err := changes.NextSequence()
	if err != nil {
		return err
	}
	return changes.Put(binary.BigEndian.AppendUint64(nil, sequence), text)
}

// Changes lists what operators set by hand, oldest first.
func (f *File) Changes() (list []Change, err error) {
	err = guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			return tx.Bucket(bucketResets).ForEach(func(_, text []byte) error {
				var c Change
				list = append(list, c)
				return json.Unmarshal(text, &list[len(list)-1])
			})
		})
	})
	return list, err
}
