package invariant

import (
	"bufio"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:embed history.sql
var historySQL string

// Executor is a connection or a pool.
type Executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// InstallHistory makes the table payout_history and the triggers that write it, as the tables' owner. Only a database that will be thrown away
// may get it: it grows with every write.
func InstallHistory(ctx context.Context, db Executor) error {
	if _, err := db.Exec(ctx, historySQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("install history: %w", err)
	}
	return nil
}

// Grant is one event of lockd's grant log.
type Grant struct {
	Seq         int    `json:"seq"`   // the place in the log
	Event       string `json:"event"` // lock_granted, or what ended the grant
	Key         string `json:"key"`
	Token       int64  `json:"token"`
	Holder      string `json:"holder"` // the owner's id
	AtMillis    int64  `json:"at_millis"`
	LeaseMillis int64  `json:"lease_millis"`
}

// Transfer is one transfer that the rail carried out.
type Transfer struct {
	Reference       string `json:"reference"`        // the rail's
	ClientReference string `json:"client_reference"` // the payout's id
}

// Events of lockd's log that tell of a grant.
const (
	eventGranted  = "lock_granted"
	eventReleased = "lock_released" // a stale one ended nothing, but says that the grant was over by then, such as with its session
	eventExpired  = "lease_expired"
	eventRevoked  = "lock_revoked"
)

// maxLine bounds a line of a log, in bytes.
const maxLine = 1 << 20

// ReadGrants reads the grant log out of the JSON logs of lockd's replicas. Lines that aren't JSON, such as a runtime's last words, are passed
// over; a grant without its fields is an error. The result is never nil.
func ReadGrants(logs ...io.Reader) ([]Grant, error) {
	grants := []Grant{}
	for _, log := range logs {
		err := eachLine(log, func(line []byte) error {
			g, ok, err := parseGrant(line)
			if ok {
				grants = append(grants, g)
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("read grant log: %w", err)
		}
	}
	if len(logs) > 1 {
		slices.SortStableFunc(grants, func(a, b Grant) int { return cmp.Compare(a.AtMillis, b.AtMillis) })
	}
	for i := range grants {
		grants[i].Seq = i + 1
	}
	return grants, nil
}

func parseGrant(line []byte) (Grant, bool, error) {
	var e struct {
		Timestamp   time.Time `json:"@timestamp"`
		Event       string    `json:"event"`
		LockKey     string    `json:"lockKey"`
		Token       int64     `json:"token"`
		OwnerID     string    `json:"ownerId"`
		LeaseMillis int64     `json:"leaseMillis"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return Grant{}, false, nil //nolint:nilerr // not an event
	}
	switch e.Event {
	case eventGranted, eventReleased, eventExpired, eventRevoked:
	default:
		return Grant{}, false, nil
	}
	if e.LockKey == "" || e.Token <= 0 || e.Timestamp.IsZero() || e.Event == eventGranted && (e.OwnerID == "" || e.LeaseMillis <= 0) {
		return Grant{}, false, fmt.Errorf("an event %s lacks a field: %.200s", e.Event, line)
	}
	return Grant{
		Event: e.Event, Key: e.LockKey, Token: e.Token, Holder: e.OwnerID, AtMillis: e.Timestamp.UnixMilli(), LeaseMillis: e.LeaseMillis,
	}, true, nil
}

// ReadTransfers reads the rail-stub's log. The result is never nil.
func ReadTransfers(log io.Reader) ([]Transfer, error) {
	transfers := []Transfer{}
	err := eachLine(log, func(line []byte) error {
		var t struct {
			RailReference   string `json:"railReference"`
			ClientReference string `json:"clientReference"`
		}
		if err := json.Unmarshal(line, &t); err != nil {
			return err
		}
		if t.RailReference == "" || t.ClientReference == "" {
			return errors.New("a line is no transfer")
		}
		transfers = append(transfers, Transfer{Reference: t.RailReference, ClientReference: t.ClientReference})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the rail's log: %w", err)
	}
	return transfers, nil
}

func eachLine(r io.Reader, do func(line []byte) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		if err := do(scanner.Bytes()); err != nil {
			return err
		}
	}
	return scanner.Err()
}
