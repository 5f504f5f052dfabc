package httpapi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"fenceline/internal/httperr"
	"fenceline/lockd/lock"
	"fenceline/lockd/lockapi"
)

// Bounds of a page.
const (
	defaultLimit = 100
	maxLimit     = 500
)

// errCannotList is a defect of the deployment: its store doesn't keep what listing needs.
var errCannotList = errors.New("this store can't list")

// listLocks is L9 for the locks that are held.
func (a *API) listLocks(c *call) error {
	prefix := c.query.Get("prefix")
	if prefix != "" && lock.ValidKey(prefix) != nil {
		return fmt.Errorf("%w: prefix: want up to 128 of the characters that a key may have", lock.ErrInvalid)
	}
	after, err := readCursor(c.query.Get("cursor"), prefix)
	if err != nil {
		return err
	}
	limit, err := limitOf(c.query)
	if err != nil {
		return err
	}
	if a.lister == nil {
		return errCannotList
	}
	grants, more, err := a.lister.Grants(c.ctx, prefix, after, limit)
	if err != nil {
		return err
	}
	page := lockapi.LockPage{Locks: make([]lockapi.HeldLock, len(grants))}
	for i, g := range grants {
		page.Locks[i] = lockapi.HeldLock{
			Key: g.Key, OwnerID: g.OwnerID, SessionID: g.SessionID.String(), FencingToken: int64(g.Token),
			AcquiredAt: lockapi.Time{Time: g.AcquiredAt}, ExpiresAt: lockapi.Time{Time: g.ExpiresAt},
		}
	}
	if more && len(grants) > 0 {
		page.NextCursor = writeCursor(grants[len(grants)-1].Key)
	}
	return httperr.WriteJSON(c.RequestCtx, 200, page)
}

// listRevocations is L9 for the record of revocations.
func (a *API) listRevocations(c *call) error {
	after, err := wholeNumber(c.query, "after", 0, 0, 1<<63-1)
	if err != nil {
		return err
	}
	limit, err := limitOf(c.query)
	if err != nil {
		return err
	}
	if a.lister == nil {
		return errCannotList
	}
	records, more, err := a.lister.Revocations(c.ctx, after, limit)
	if err != nil {
		return err
	}
	page := lockapi.RevocationPage{Revocations: make([]lockapi.RevocationRecord, len(records))}
	for i, r := range records {
		page.Revocations[i] = lockapi.RevocationRecord{
			RevocationID: r.ID, Key: r.Key, RevokedToken: int64(r.PreviousToken), PreviousOwner: r.PreviousOwner,
			Operator: r.Operator, Reason: r.Reason, RevokedAt: lockapi.Time{Time: r.RevokedAt},
		}
	}
	if more && len(records) > 0 {
		page.NextCursor = strconv.FormatInt(records[len(records)-1].ID, 10)
	}
	return httperr.WriteJSON(c.RequestCtx, 200, page)
}

func limitOf(query url.Values) (int, error) {
	limit, err := wholeNumber(query, "limit", defaultLimit, 1, maxLimit)
	return int(limit), err
}

// wholeNumber reads a parameter in its one spelling: decimal digits without sign or leading zero.
func wholeNumber(query url.Values, name string, otherwise, least, most int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != text || n < least || n > most {
		return 0, fmt.Errorf("%w: %s: want a whole number from %d to %d", lock.ErrInvalid, name, least, most)
	}
	return n, nil
}

// cursorMark begins every cursor, so that a later format can be told from this one.
const cursorMark = "k1:"

// writeCursor makes the cursor that continues after a key. Clients mustn't look into it.
func writeCursor(key string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(cursorMark + key))
}

// readCursor returns the key that a listing of the prefix continues after. A cursor of another listing, which would silently leave rows out,
// is as bad as one that nobody handed out.
func readCursor(cursor, prefix string) (after string, err error) {
	if cursor == "" {
		return "", nil
	}
	decoded, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	key, marked := strings.CutPrefix(string(decoded), cursorMark)
	if err != nil || !marked || lock.ValidKey(key) != nil || !strings.HasPrefix(key, prefix) {
		return "", fmt.Errorf("%w: cursor: want the nextCursor of an earlier page with the same prefix", lock.ErrInvalid)
	}
	return key, nil
}
