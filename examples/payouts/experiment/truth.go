package experiment

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/jackc/pgx/v5"

	"fenceline/paysvc/invariant"
)

// readTruth reads what the payout came to, with the owner's rights and in one statement,
// hence at one instant.
func readTruth(ctx context.Context, databaseURL, railLog, payoutID string) (Truth, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return Truth{}, fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	truth := Truth{PayoutID: payoutID}
	if err := conn.QueryRow(ctx, selectTruth, payoutID).Scan(
		&truth.AccountID, &truth.Amount, &truth.State, &truth.DebitRows, &truth.Debited,
		&truth.Balance, &truth.EntriesSum, &truth.ClearingBalance, &truth.ClearingSum,
	); err != nil {
		return Truth{}, fmt.Errorf("read payout %s: %w", payoutID, err)
	}
	truth.Transfers, err = readRailLog(railLog, payoutID)
	return truth, err
}

// selectTruth compares the payer's account and the payout's clearing account with their ledger
// rows. The clearing account is the one that the payout's CREDIT leg names.
const selectTruth = `
WITH clearing AS (
    SELECT account_id FROM ledger_entry WHERE payout_id = $1 AND direction = 'CREDIT'
), sums AS (
    SELECT account_id, sum(CASE direction WHEN 'CREDIT' THEN amount_minor ELSE -amount_minor END) AS total
      FROM ledger_entry GROUP BY account_id
)
SELECT p.account_id::text, p.amount_minor, p.state,
       (SELECT count(*) FROM ledger_entry l WHERE l.payout_id = p.payout_id AND l.direction = 'DEBIT'),
       (SELECT coalesce(sum(l.amount_minor), 0)::bigint FROM ledger_entry l WHERE l.payout_id = p.payout_id AND l.direction = 'DEBIT'),
       a.balance_minor,
       coalesce((SELECT total FROM sums WHERE sums.account_id = a.account_id), 0)::bigint,
       coalesce((SELECT c.balance_minor FROM account c JOIN clearing USING (account_id)), 0),
       coalesce((SELECT total FROM sums JOIN clearing USING (account_id)), 0)::bigint
  FROM payout p
  JOIN account a ON a.account_id = p.account_id
 WHERE p.payout_id = $1`

// checkInvariants looks at paydb and its history, lockd's grant log, and the rail's log.
func (s *System) checkInvariants(ctx context.Context) (invariant.Report, error) {
	evidence := invariant.Evidence{FencedResource: s.Setup.Fenced.Account, FencedRail: s.Setup.Fenced.Rail}
	err := errors.Join(
		withFile(s.lockdLog, func(log io.Reader) (err error) { evidence.Grants, err = invariant.ReadGrants(log); return err }),
		withFile(s.railLog, func(log io.Reader) (err error) { evidence.Transfers, err = invariant.ReadTransfers(log); return err }),
	)
	if err != nil {
		return invariant.Report{}, err
	}
	conn, err := pgx.Connect(ctx, s.databases.pay.URL(s.databases.payName))
	if err != nil {
		return invariant.Report{}, fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return invariant.Check(ctx, conn, evidence)
}

func withFile(path string, read func(io.Reader) error) error {
	file, err := os.Open(path) //nolint:gosec // a file of this run
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer func() { _ = file.Close() }()
	return read(file)
}

// railRecord is one line of the rail's log, as far as it matters here.
type railRecord struct {
	ClientReference string `json:"clientReference"`
	RailReference   string `json:"railReference"`
	AmountMinor     Money  `json:"amountMinor"`
}

// readRailLog returns the transfers that the rail carried out for the payout. The log belongs to the
// rail alone; no process of the payment system writes it.
func readRailLog(path, payoutID string) ([]Transfer, error) {
	file, err := os.Open(path) //nolint:gosec // the file of this run
	if err != nil {
		return nil, fmt.Errorf("open the rail's log: %w", err)
	}
	defer func() { _ = file.Close() }()
	var transfers []Transfer
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		var record railRecord
		if err := json.Unmarshal(scanner.Bytes(), &record); err != nil {
			return nil, fmt.Errorf("read the rail's log: %w", err)
		}
		if record.ClientReference == payoutID {
			transfers = append(transfers, Transfer{Reference: record.RailReference, Amount: record.AmountMinor})
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read the rail's log: %w", err)
	}
	return transfers, nil
}

// payerAccounts returns accounts of the synthetic data that can pay the experiment's payout, the same ones each
// time. The clearing account is never a payer: it only ever receives.
func payerAccounts(ctx context.Context, databaseURL string, want int) ([]string, error) {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return nil, fmt.Errorf("connect to paydb: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	rows, err := conn.Query(ctx, selectPayers, 4*payoutAmount, want)
	if err != nil {
		return nil, fmt.Errorf("choose accounts: %w", err)
	}
	accounts, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("choose accounts: %w", err)
	}
	if len(accounts) < want {
		return nil, fmt.Errorf("the synthetic data has %d accounts with at least %s EUR, want %d", len(accounts), 4*payoutAmount, want)
	}
	return accounts, nil
}

// selectPayers takes accounts with room for every wrong debit, so that a balance check can't
// hide one.
const selectPayers = `
SELECT account_id::text FROM account
 WHERE currency = 'EUR' AND balance_minor >= $1
 ORDER BY account_id DESC
 LIMIT $2`
