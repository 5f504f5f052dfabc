package filemark

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/bbolt"
)

// upgrade makes a file of the first format one of this one, in one transaction, so that a crash leaves the one or the other. Its marks stay as they are, and what it says of its guards gets a checksum; nothing was
// registered, since that format kept no requests in flight. Older programs refuse the file from then on.
func (f *File) upgrade() error {
	err := guarded(func() error { return f.db.Update(upgradeFormat) })
	if err != nil && !errors.Is(err, errNothingToWrite) {
		return fmt.Errorf("bring the mark file to format %d: %w", formatVersion, err)
	}
	return nil
}

func upgradeFormat(tx *bbolt.Tx) error {
	var said format
	bucket := tx.Bucket(bucketFormat)
	if err := json.Unmarshal(bucket.Get(keyFormat), &said); err != nil {
		return fmt.Errorf("%w: its format can't be read", ErrDamaged)
	}
	if said.Version != firstFormat {
		return errNothingToWrite
	}
	said.Version, said.Upgraded = formatVersion, time.Now().UTC()
	text, err := json.Marshal(said)
	if err != nil {
		return err
	}
	guards, infos := tx.Bucket(bucketGuards), map[string]guardInfo{}
	if err := guards.ForEach(func(name, _ []byte) (err error) {
		infos[string(name)], err = readFirstInfo(guards, string(name))
		return err
	}); err != nil {
		return err
	}
	for name, info := range infos { // with a checksum from now on
		if err := writeInfo(guards, name, info); err != nil {
			return err
		}
	}
	_, err = tx.CreateBucket(bucketInflight)
	return errors.Join(err, bucket.Put(keyFormat, text), bucket.Put(keyRegister, census{}.encode()))
}
