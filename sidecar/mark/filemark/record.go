package filemark

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"time"

	"go.etcd.io/bbolt"

	"fenceline/lockd/lock"
)

// A record is a mark: token, time of its last raise (Unix nanoseconds), checksum; big-endian. bbolt has no checksums of its own below its two heads, and
// a token with a flipped bit would be a lower mark.
const recordSize = 8 + 8 + 4

func encode(guard string, key []byte, token lock.Token, now time.Time) []byte {
	b := make([]byte, recordSize)
	binary.BigEndian.PutUint64(b, uint64(token)) //nolint:gosec // tokens are above 0
	binary.BigEndian.PutUint64(b[8:], uint64(now.UnixNano()))
	binary.BigEndian.PutUint32(b[16:], checksum(guard, key, b[:16]))
	return b
}

// checksum covers the guard and the key too, so that a record can't stand under another key unnoticed.
func checksum(guard string, key, value []byte) uint32 {
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Update(0, table, []byte(guard+"\x00"))
	return crc32.Update(crc32.Update(sum, table, key), table, value)
}

func decode(guard string, key, value []byte) (lock.Token, error) {
	if len(value) != recordSize || checksum(guard, key, value[:16]) != binary.BigEndian.Uint32(value[16:]) {
		return 0, fmt.Errorf("%w: a mark of guard %s has a wrong checksum", ErrDamaged, guard)
	}
	token := lock.Token(binary.BigEndian.Uint64(value)) //nolint:gosec // checked below
	if token < 1 {
		return 0, fmt.Errorf("%w: a mark of guard %s is below 1", ErrDamaged, guard)
	}
	return token, nil
}

// guardInfo is what the file knows of a guard.
type guardInfo struct {
	KeyType string `json:"keyType"`
	Count   uint64 `json:"count"` // records, so that lost ones are missed
	// Definition says under which rules the guard's requests were last registered.
	Definition string `json:"definition,omitempty"`
}

// readInfo reads the text and checks its checksum, which stands behind it.
func readInfo(guards *bbolt.Bucket, name string) (guardInfo, error) {
	value := guards.Get([]byte(name))
	end := len(value) - checksumSize
	if end < 0 || checksum(string(bucketGuards), []byte(name), value[:end]) != binary.BigEndian.Uint32(value[end:]) {
		return guardInfo{}, fmt.Errorf("%w: what it says of guard %s has a wrong checksum", ErrDamaged, name)
	}
	return parseInfo(name, value[:end])
}

// readFirstInfo reads what a file of the first format says: it has no checksum there.
func readFirstInfo(guards *bbolt.Bucket, name string) (guardInfo, error) {
	return parseInfo(name, guards.Get([]byte(name)))
}

func parseInfo(name string, text []byte) (guardInfo, error) {
	var info guardInfo
	if err := json.Unmarshal(text, &info); err != nil {
		return info, fmt.Errorf("%w: what it says of guard %s can't be read", ErrDamaged, name)
	}
	return info, nil
}

func writeInfo(guards *bbolt.Bucket, name string, info guardInfo) error {
	text, err := json.Marshal(info)
	if err != nil {
		return err
	}
	return guards.Put([]byte(name), binary.BigEndian.AppendUint32(text, checksum(string(bucketGuards), []byte(name), text)))
}
