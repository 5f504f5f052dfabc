package resource

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fenceline/paysvc/payout"
)

// A cursor is a position in a list, as text that clients only hand back: a version byte, the microseconds since 1970, the payout's id.
const (
	cursorVersion = 1
	cursorLength  = 1 + 8 + 16
)

// latest is the last year that a position can lie in; later ones don't come from here and may not fit into a timestamp.
const latest = 9999

func encodeCursor(p payout.Position) string {
	raw := make([]byte, 0, cursorLength)
	raw = append(raw, cursorVersion)
	raw = binary.BigEndian.AppendUint64(raw, uint64(p.CreatedAt.UnixMicro()))
	raw = append(raw, p.ID[:]...)
	return base64.RawURLEncoding.EncodeToString(raw)
}

func decodeCursor(text string) (payout.Position, error) {
	invalid := fmt.Errorf("%w: cursor: it doesn't come from this service; leave it out to begin again", payout.ErrInvalid)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) != cursorLength || raw[0] != cursorVersion {
		return payout.Position{}, invalid
	}
	created := time.UnixMicro(int64(binary.BigEndian.Uint64(raw[1:9]))).UTC() //nolint:gosec // written from a signed number
	if created.Year() < 1970 || created.Year() > latest {
		return payout.Position{}, invalid
	}
	return payout.Position{CreatedAt: created, ID: uuid.UUID(raw[9:])}, nil
}
